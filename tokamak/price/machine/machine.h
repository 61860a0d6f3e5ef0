// A machine that a plan is priced for: a device, the levels of its fabric, and what its software
// and its operation cost. Read from TOML, in which every number is { value, unit, source }.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/core/enum_array.h"

namespace tokamak::price {

/// What the products of linear layers compute in.
enum class Precision : uint8_t { kFp32, kBf16, kFp8, kFp4 };
inline constexpr size_t kNumPrecisions = 4;

std::string_view name_of(Precision precision);

/// A tile of a product's kernel and its share of the best rate.
struct GemmTile {
  int m = 0;
  int n = 0;
  double efficiency = 1.0;
};

/// Rates are per device as a program sees it, in SI units; 0 = the device cannot.
struct Device {
  std::string name;
  int arch = 0;                                                    ///< 90 for sm_90
  EnumArray<Precision, double, kNumPrecisions> peak_flops{};       ///< dense, by Precision
  EnumArray<Precision, double, kNumPrecisions> gemm_efficiency{};  ///< best large product over peak
  /// Over the peak, what power sustains: a product takes at least its FLOPs at that. A kernel that
  /// leaves multiprocessors idle at cold clocks is not slower for it. 1 = power is never short.
  double gemm_sustained_efficiency = 1.0;
  /// Of what power sustains, among devices of this kind: their standard deviation over their mean.
  double sustained_spread = 0.0;
  double attention_forward_efficiency = 0.0;  ///< over the bf16 peak, many keys
  double attention_backward_efficiency = 0.0;
  /// A row of queries that sees n keys takes as long as n + this: what a tile costs besides keys.
  double attention_forward_overhead = 0.0;
  double attention_backward_overhead = 0.0;
  /// Waves of tiles that causal attention takes beyond tiles / num_sms, since the longest tile is
  /// twice the mean; less where it is less, and whole waves at least.
  double attention_forward_tail = 0.0;
  double attention_backward_tail = 0.0;
  /// The softmax of a tile takes as long as products over so many more columns of the head; the
  /// efficiencies are those of heads of 128.
  double attention_softmax_columns = 48.0;
  double attention_backward_softmax_columns = 48.0;
  /// The rate of products goes with this power of the clocks, that of attention with the clocks.
  double gemm_clock_exponent = 1.0;
  /// At the highest clocks and full rate, over what the device may draw.
  double attention_power = 1.0;
  /// Of kernels bound by memory, over what the device may draw. Where it is given, power is a
  /// matter of a whole step (step_clock.h), else of each product by itself.
  double memory_power = 0.0;
  /// Of collectives that stand between kernels (on stream 0), over what the device may draw.
  double collective_power = 1.0;
  int num_sms = 1;
  std::vector<GemmTile> tiles;
  double gemm_k_overhead = 300.0;  ///< a product of depth k takes as long as k + this at full rate
  double gemm_kernel_overhead =
      0.0;  ///< depth that a product's kernel takes once, at begin and end; both as depth of bf16
  double gemm_alignment_share =
      0.93;  ///< of the rate, for each halving of the rows' alignment below 128 bytes
  /// Of the rate, where rows begin at odd elements: no copy to shared memory beside the products.
  double gemm_odd_share = 0.4;
  double memory_bytes = 0.0;
  double memory_bytes_per_s = 0.0;  ///< of the data sheet
  double memory_efficiency = 0.85;  ///< large copies over it
  double memory_half_bytes = 2e6;   ///< bytes at which half of that is reached
  double launch_s = 2e-6;           ///< between two kernels of a stream
  double reserve_bytes = 0.0;       ///< context, libraries: outside the plan
  /// The best that large products and copies reach, from which tables of ops count floors; 0 = not
  /// known.
  double floor_flops_bf16 = 0.0;
  double floor_bytes_per_s = 0.0;
  double to_host_bytes_per_s = 0.0;
  double from_host_bytes_per_s = 0.0;
};

inline constexpr size_t kMaxLevels = 8;

/// One level of the fabric, innermost first.
struct Level {
  std::string name;               ///< "nvlink", "infiniband"
  int num_devices = 1;            ///< of one domain, all inner levels included; 0 = any number
  double bytes_per_s = 0.0;       ///< of one device, one direction
  double pair_bytes_per_s = 0.0;  ///< between two devices; 0 = bytes_per_s
  double efficiency = 0.8;        ///< large collectives over bytes_per_s
  double latency_s = 0.0;         ///< of one hop
  double base_s = 0.0;            ///< of one collective
  double sqrt_s = 0.0;            ///< times the root of MiB
  /// At which a device stores what its last neighbour of a ring sent, passing nothing on; 0 = as
  /// part of `efficiency`.
  double ring_end_bytes_per_s = 0.0;
  int switch_reduce_min_devices = 0;       ///< all-reduce in the switch from so many; 0 = none
  double switch_reduce_bytes_per_s = 0.0;  ///< of the buffer
  double switch_reduce_base_s = 0.0;
  double oversubscription = 1.0;
  int whole_devices = 0;  ///< of a domain of which the job takes num_devices; 0 = it takes all
};

/// What the software of a run costs beyond the plan's own kernels, or does otherwise than the plan.
struct Software {
  double host_launch_s = 8e-6;  ///< to launch one kernel, without captured graphs
  /// To launch the kernels of a block's forward, however many ours are; twice that for its
  /// backward; 0 = host_launch_s for each.
  double host_block_s = 0.0;
  /// 1 = the host launches kernels of later blocks beside those that run; 0 = none but of a block.
  int host_ahead = 1;
  double collective_call_s = 0.0;     ///< of the host, of each collective, that nothing hides
  double compute_slowdown = 1.0;      ///< of kernels beside a collective
  double collective_slowdown = 1.0;   ///< of a collective beside kernels
  double copy_engine_slowdown = 1.0;  ///< of kernels beside a gather by copy engines
  /// Of kernels beside a pipeline's message, from when its kernel waits for the other end.
  double message_slowdown = 1.0;
  /// Multiprocessors that such a message holds: products and attention run on the others.
  int message_sms = 0;
  double step_overhead_s = 0.0;      ///< per step: data, logging, barriers
  double power_derate = 1.0;         ///< sustained over short-run rate of products and attention
  double elementwise_traffic = 1.0;  ///< bytes of kernels bound by memory over the plan's
  double attention_share = 1.0;      ///< rate of attention over the device's
  /// Moved for each query, key and head by the forward of an attention that is not fused; 0 = it
  /// is. Twice that by the backward. All pairs are computed then, causal or not.
  double attention_pair_bytes = 0.0;
  /// Moved for each token and word beside the head's products by a loss that is not fused; 0 = it
  /// is.
  double logit_bytes = 0.0;
  /// Of the time of collectives of tensor parallel ranks, under the products that they feed or are
  /// fed by, where the plan runs one after the other.
  double tensor_parallel_overlap = 0.0;
  double gradient_bytes = 4.0;  ///< of an element of the gradients that ranks sum
  /// 1 = gradients are reduced beside what the pipeline does next, where the plan says so
  /// (Segment::outliving_streams); 0 = an item ends after its reductions.
  int reduction_overlap = 1;
  /// 1 = what data-parallel ranks gather once a step runs beside the items that do not need it yet;
  /// 0 = they begin after it, as the plan says.
  int gather_overlap = 0;
};

struct Storage {
  int devices_per_node = 8;
  double write_bytes_per_s = 0.0;  ///< of one node
  double read_bytes_per_s = 0.0;
  double total_bytes_per_s = 0.0;  ///< of the whole file system
  double commit_s = 0.0;
};

struct Failures {
  double per_device_s = 0.0;  ///< failures of one device, and of its share of the rest, a second
  double detect_s = 0.0;
  double restart_s = 0.0;  ///< schedule and start, without loading a checkpoint
  double repair_s = 0.0;   ///< until a failed node is back
};

struct Machine {
  std::string name;
  std::string about;  ///< one line
  Device device;
  std::vector<Level> levels;
  Software software;
  Storage storage;
  Failures failures;

  /// "key = value unit  (source)", one line each, in the table's order.
  std::string describe() const;

  /// Where the number is from: a file's words, "--set" or "default".
  std::string_view source_of(std::string_view key) const;

  std::vector<std::pair<std::string, std::string>> sources;  ///< by key
};

/// Names of the machines built in, sorted.
std::vector<std::string> machine_names();

/// Names of the parts built in, devices and fabrics, sorted.
std::vector<std::string> machine_part_names();

/// Built-in names and TOML files (names with a '/' or that end in .toml) joined by '+': each adds
/// to what those before it say, and overrides it; joined machines have a joined name. Throws Error
/// in one line: file, key, wanted, got.
Machine load_machine(const std::string& names);

/// The machine that this TOML text describes, on built-in bases only; `name` is for messages.
Machine parse_machine(std::string_view text, const std::string& name);

/// Every number's key, in the table's order: "device.num_sms", "nvlink.bytes_per_s".
std::vector<std::string> machine_keys(const Machine& machine);

/// "device.memory_bytes_per_s=4.0 TB/s", "nvlink.efficiency=0.8". Throws Error that begins with
/// `option` and the assignment: unknown key with the nearest, missing or wrong unit, out of range.
void set_number(Machine& machine, std::string_view assignment, std::string_view option = "--set");

/// Throws Error where numbers do not belong together: domains that do not nest, a reserve beyond
/// the memory. A loaded machine has passed.
void validate(const Machine& machine);

/// Throws Error that begins with `who` where the fabric connects fewer devices.
void require_devices(const Machine& machine, int64_t num_devices, std::string_view who);

/// The machine as a job of so many devices finds it where the innermost domain is a rack of several
/// nodes and a scheduler takes as many of every rack, the most that divide the job's (Slurm's
/// --segment): of 128 devices 64 in each of two racks of 72. As it is where racks are filled, where
/// that is under half a rack, where there are too few racks, or where --set says what one has.
Machine with_equal_domains(Machine machine, int64_t num_devices);

/// "64 devices of each nvlink domain of 72, as sbatch --segment=16 takes them; ..."; empty where
/// all are taken.
std::string taken_text(const Machine& machine);

/// Throws Error where the device has no products in `precision`.
void require_products(const Machine& machine, Precision precision);

/// Reads and writes one number by key, in SI units. Throws Error if there is no such key.
double get_number(const Machine& machine, std::string_view key);
void set_number(Machine& machine, std::string_view key, double value);

}  // namespace tokamak::price
