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

#include "tokamak/core/dtype.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/graph/op.h"

namespace tokamak::price {

/// The precision in which matmuls of linear layers compute.
enum class Precision : uint8_t { kFp32, kBf16, kFp8, kFp4 };
inline constexpr size_t kNumPrecisions = 4;

std::string_view name_of(Precision precision);

/// Returns the precision of matmuls of a type.
Precision precision_of(DType dtype);

double element_bytes(Precision precision);

/// Whether it has fewer than 16 bits.
bool is_low(Precision precision);

/// A tile of a matmul kernel and its share of the best rate.
struct GemmTile {
  int m = 0;
  int n = 0;
  double efficiency = 1.0;
};

/// Matmuls.
struct GemmRates {
  EnumArray<Precision, double, kNumPrecisions> efficiency{};  ///< best large matmul over peak
  /// The rate that power sustains, over the peak: a matmul takes at least its FLOPs at that rate. A
  /// kernel that leaves multiprocessors idle at cold clocks is not slowed. 1 = power is never
  /// short.
  double sustained_efficiency = 1.0;
  /// Standard deviation over mean, among devices of this kind, of the rate that power sustains.
  double sustained_spread = 0.0;
  double clock_exponent = 1.0;  ///< the rate is proportional to this power of the clocks
  std::vector<GemmTile> tiles;
  double k_overhead = 300.0;     ///< a matmul of depth k takes as long as k + this at full rate
  double kernel_overhead = 0.0;  ///< depth that a matmul kernel takes once, at begin and end; both
                                 ///< as depth of bf16
  double alignment_share =
      0.93;  ///< of the rate, for each halving of the rows' alignment below 128 bytes
  /// Share of the rate where rows begin at odd elements: then no copy to shared memory runs beside
  /// the matmuls.
  double odd_share = 0.4;
  /// Rates of matmuls in low precision whose scales are of rows, and of parts of rows, over that
  /// with scales of tensors.
  double rows_share = 1.0;
  double parts_share = 1.0;
};

/// Attention in one direction. Its rate is proportional to the clocks.
struct AttentionRates {
  double efficiency = 0.0;  ///< over the bf16 peak, many keys
  /// A row of queries that sees n keys takes as long as n + this, which a tile costs besides keys.
  double overhead = 0.0;
  /// Waves of tiles that causal attention takes beyond tiles / num_sms, since the longest tile is
  /// twice the mean. A shorter longest tile adds less; attention takes at least whole waves.
  double tail = 0.0;
  /// The softmax of a tile takes as long as matmuls over this many more columns of the head; the
  /// efficiency holds for head dim 128.
  double softmax_columns = 48.0;
};

/// Power of kernels over what the device may draw.
struct PowerShares {
  double attention = 1.0;  ///< at the highest clocks and full rate
  /// Of kernels bound by memory. If it is given, the power limit holds for a whole step
  /// (step_clock.h), else for each matmul by itself.
  double memory = 0.0;
  double collective = 1.0;  ///< of collectives between kernels (on stream 0)
  /// Of matmuls in low precision at their rate, which then does not go with the clocks. 0: they are
  /// like other matmuls.
  double low_precision = 0.0;
};

/// Rates of kernels that quantize under scales of tensors, rows and parts of rows, over those of
/// other kernels bound by memory.
struct EncodeShares {
  double tensor_share = 1.0;
  double rows_share = 1.0;
  double parts_share = 1.0;
};

struct MemoryRates {
  double bytes = 0.0;
  double reserve_bytes = 0.0;  ///< context, libraries: outside the plan
  double bytes_per_s = 0.0;    ///< of the data sheet
  double efficiency = 0.85;    ///< large copies over it
  double half_bytes = 2e6;     ///< bytes at which half of that is reached
};

/// Copies that no kernel does.
struct CopyRates {
  double to_host_bytes_per_s = 0.0;
  double from_host_bytes_per_s = 0.0;
  /// Rates at which an asynchronous save copies state, within the device while the step stands and
  /// to the host during steps; 0 = as a kernel copies, and to_host_bytes_per_s.
  double snapshot_bytes_per_s = 0.0;
  double save_bytes_per_s = 0.0;
};

/// Rates are per device as a program sees it, in SI units; 0 = not supported. A key of the table
/// begins with the name of its group, as in "gemm_k_overhead".
struct Device {
  std::string name;
  int arch = 0;                                               ///< 90 for sm_90
  EnumArray<Precision, double, kNumPrecisions> peak_flops{};  ///< dense, by Precision
  int num_sms = 1;
  double launch_s = 2e-6;  ///< between two kernels of a stream
  GemmRates gemm;
  AttentionRates attention_forward;
  AttentionRates attention_backward;
  PowerShares power;
  EncodeShares encode;
  MemoryRates memory;
  CopyRates copies;
  /// The best that large matmuls and copies reach, from which tables of ops compute floors; 0 = not
  /// known.
  DeviceRates floor;
  /// Devices of the largest measured run that a price was within 15 % of; 0 = there is none.
  int verified_devices = 0;
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
  /// Rate at which a device stores what its last ring neighbour sent, passing nothing on; 0 = this
  /// is part of `efficiency`.
  double ring_end_bytes_per_s = 0.0;
  int switch_reduce_min_devices = 0;       ///< all-reduce in the switch from this many on; 0 = none
  double switch_reduce_bytes_per_s = 0.0;  ///< of the buffer
  double switch_reduce_base_s = 0.0;
  double oversubscription = 1.0;
  int whole_devices = 0;  ///< of a domain, if the job takes only num_devices; 0 = it takes all
};

/// The costs of a run's software beyond the plan's kernels, and its differences from the plan.
struct Software {
  double host_launch_s = 8e-6;  ///< to launch one kernel, without captured graphs
  /// Seconds to launch the kernels of a block's forward, however many our plan has; a backward
  /// takes twice that; 0 = host_launch_s for each kernel.
  double host_block_s = 0.0;
  /// 1 = the host launches kernels of later blocks beside those that run; 0 = only those of the
  /// block that runs.
  int host_ahead = 1;
  double collective_call_s = 0.0;     ///< host time per collective, which nothing hides
  double compute_slowdown = 1.0;      ///< of kernels during a collective
  double collective_slowdown = 1.0;   ///< of a collective while kernels run
  double copy_engine_slowdown = 1.0;  ///< of kernels during a gather by copy engines
  /// Slowdown of kernels during a pipeline's message, from when its kernel waits for the other end.
  double message_slowdown = 1.0;
  /// Multiprocessors that such a message holds; matmuls and attention run on the others.
  int message_sms = 0;
  double step_overhead_s = 0.0;      ///< per step: data, logging, barriers
  double power_derate = 1.0;         ///< sustained over short-run rate of matmuls and attention
  double elementwise_traffic = 1.0;  ///< bytes of kernels bound by memory over the plan's
  /// 1 = matmuls in few bits cast as Transformer Engine does (task/low_precision.h), beside a plan
  /// in the compute dtype; 0 = the plan itself is in low precision.
  int own_casts = 0;
  /// How its own casts and matmuls in few bits differ from Transformer Engine's with scales of
  /// tensors:
  double low_share = 1.0;        ///< rate of such matmuls over the device's
  double cast_reads = 1.0;       ///< times that a cast reads an element
  int gathers_low = 1;           ///< 1 = tp gathers few bits; 0 = values, which every rank casts
  double attention_share = 1.0;  ///< rate of attention over the device's
  /// Bytes that the forward of an unfused attention moves per query, key and head; the backward
  /// moves twice that. 0 = it is fused. Unfused attention computes all pairs, causal or not.
  double attention_pair_bytes = 0.0;
  /// Bytes that an unfused loss moves per token and word beside the head's matmuls; 0 = it is
  /// fused.
  double logit_bytes = 0.0;
  /// Share of tensor-parallel collectives' time hidden under the matmuls before or after them,
  /// where the plan runs one after the other.
  double tensor_parallel_overlap = 0.0;
  /// 1 = plans cover tensor-parallel collectives of the backward with weight gradients, and gather
  /// by copy engines where a group has one host; 0 = plans of published runs do not.
  int covers_collectives = 1;
  int merges_matmuls = 1;   ///< 1 = q, k and v are one matmul, and so are gate and up
  int keeps_copies = 1;     ///< 1 = updates write compute copies of weights; 0 = a pass casts them
  int device_graphs = 1;    ///< 1 = the plan may replay device graphs
  int whole_sequences = 0;  ///< 1 = each tensor-parallel rank holds whole sequences between blocks
  double gradient_bytes = 4.0;  ///< per element of the gradients that ranks sum
  /// 1 = gradients are reduced beside what the pipeline does next, where the plan says so
  /// (Segment::outliving_streams); 0 = an item ends after its reductions.
  int reduction_overlap = 1;
  /// 1 = gathers of data-parallel ranks once a step run beside items that do not need them yet; 0 =
  /// all items begin after them, as the plan says.
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

  /// Returns lines "key = value unit  (source)" in the table's order.
  std::string describe() const;

  /// Returns the source of the number: a file's words, "--set" or "default".
  std::string_view source_of(std::string_view key) const;

  std::vector<std::pair<std::string, std::string>> sources;  ///< by key
};

/// Returns the names of built-in machines, sorted.
std::vector<std::string> machine_names();

/// Returns the names of built-in parts, devices and fabrics, sorted.
std::vector<std::string> machine_part_names();

/// Loads built-in names and TOML files (names with a '/' or that end in .toml) joined by '+'. Each
/// adds to those before it and overrides them; joined machines have a joined name. Throws Error in
/// one line: file, key, wanted, got.
Machine load_machine(const std::string& names);

/// Returns the machine that this TOML text describes, on built-in bases only; `name` is for
/// messages.
Machine parse_machine(std::string_view text, const std::string& name);

/// Returns every number's key, in the table's order: "device.num_sms", "nvlink.bytes_per_s".
std::vector<std::string> machine_keys(const Machine& machine);

/// Applies "device.memory_bytes_per_s=4.0 TB/s" or "nvlink.efficiency=0.8". Throws Error that
/// begins with `option` and the assignment: unknown key with the nearest, missing or wrong unit,
/// out of range.
void set_number(Machine& machine, std::string_view assignment, std::string_view option = "--set");

/// Throws Error if numbers contradict each other: domains that do not nest, a reserve beyond the
/// memory. A loaded machine has passed.
void validate(const Machine& machine);

/// Throws Error that begins with `who` if the fabric connects fewer devices.
void require_devices(const Machine& machine, int64_t num_devices, std::string_view who);

/// Returns the machine as a job of `devices` devices finds it, if the innermost domain is a rack of
/// several nodes and a scheduler takes equally many nodes of every rack, the most that divide the
/// job's (Slurm's --segment): for 128 devices 64 in each of two racks of 72. Returns it unchanged
/// if racks are filled, if that is under half a rack, if there are too few racks, or if --set says
/// what a rack has.
Machine with_equal_domains(Machine machine, int64_t num_devices);

/// Returns "64 devices of each nvlink domain of 72, as sbatch --segment=16 takes them; ..."; empty
/// if all are taken.
std::string taken_text(const Machine& machine);

/// Returns "unverified: ..." if no measured run on the machine's device bears its prices out, else
/// "".
std::string unverified_text(const Machine& machine);

/// Returns the rates with which plans for the machine are made. For Hopper they are the defaults,
/// so that its prices are of the plans that run.
Rates planning_rates(const Machine& machine);

/// Throws Error if the device has no matmuls in `precision`.
void require_products(const Machine& machine, Precision precision);

/// Reads and writes one number by key, in SI units. Throws Error if there is no such key.
double get_number(const Machine& machine, std::string_view key);
void set_number(Machine& machine, std::string_view key, double value);

}  // namespace tokamak::price
