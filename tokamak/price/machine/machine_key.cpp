#include "tokamak/price/machine/machine_key.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak::price {

namespace {

using enum Dimension;

constexpr double kMaxFlops = 1e18;
constexpr double kMaxRate = 1e15;
constexpr double kMaxBytes = 1e18;
constexpr double kMaxShort = 10.0;         // s, of latencies
constexpr double kMaxLong = 30 * 86400.0;  // s, of recoveries
constexpr double kMaxDevices = 1 << 24;
constexpr size_t kMaxTiles = 64;
constexpr std::string_view kTilePrefix = "device.tile_";

// The field at the end of a path of members.
template <auto... Path>
auto& field_of(auto& machine) {
  return (machine.*....*Path);
}

template <auto... Path>
MachineKey number(const std::string& name, Dimension dimension, double min, double max) {
  using Type = std::remove_reference_t<decltype(field_of<Path...>(std::declval<Machine&>()))>;
  return {.name = name,
          .dimension = dimension,
          .min = min,
          .max = max,
          .is_whole = std::is_integral_v<Type>,
          .get = [](const Machine& m, size_t) { return static_cast<double>(field_of<Path...>(m)); },
          .set = [](Machine& m, size_t, double v) { field_of<Path...>(m) = static_cast<Type>(v); }};
}

// The keys of one part of a machine.
template <auto... Part>
class PartKeys {
 public:
  PartKeys(std::string_view section, std::vector<MachineKey>& out) : section_(section), out_(out) {}

  template <auto... Path>
  void add(std::string_view name, Dimension dimension, double min, double max) const {
    out_.push_back(
        number<Part..., Path...>(fmt::format("{}.{}", section_, name), dimension, min, max));
  }

 private:
  std::string_view section_;
  std::vector<MachineKey>& out_;
};

template <auto... Path>
MachineKey by_precision(std::string_view name, size_t precision, Dimension dimension, double max) {
  return {.name = fmt::format("device.{}_{}", name, name_of(static_cast<Precision>(precision))),
          .dimension = dimension,
          .max = max,
          .get = [](const Machine& m, size_t at) { return field_of<Path...>(m)[at]; },
          .set = [](Machine& m, size_t at, double v) { field_of<Path...>(m)[at] = v; },
          .at = precision};
}

template <auto Field>
MachineKey of_level(const Machine& m, size_t level, std::string_view name, Dimension dimension,
                    double min, double max) {
  using Type = std::remove_reference_t<decltype(std::declval<Level&>().*Field)>;
  return {
      .name = fmt::format("{}.{}", m.levels[level].name, name),
      .dimension = dimension,
      .min = min,
      .max = max,
      .is_whole = std::is_integral_v<Type>,
      .get = [](const Machine& x, size_t at) { return static_cast<double>(x.levels[at].*Field); },
      .set = [](Machine& x, size_t at, double v) { x.levels[at].*Field = static_cast<Type>(v); },
      .at = level};
}

MachineKey of_tile(const Machine& m, size_t tile) {
  const GemmTile& t = m.device.gemm.tiles[tile];
  return {.name = fmt::format("{}{}x{}", kTilePrefix, t.m, t.n),
          .min = 1e-3,
          .max = 1.0,
          .get = [](const Machine& x, size_t at) { return x.device.gemm.tiles[at].efficiency; },
          .set = [](Machine& x, size_t at, double v) { x.device.gemm.tiles[at].efficiency = v; },
          .at = tile};
}

void add_device(std::vector<MachineKey>& out) {
  const PartKeys<&Machine::device> keys("device", out);
  const PartKeys<&Machine::device, &Device::gemm> gemm("device", out);
  const PartKeys<&Machine::device, &Device::attention_forward> forward("device", out);
  const PartKeys<&Machine::device, &Device::attention_backward> backward("device", out);
  const PartKeys<&Machine::device, &Device::power> power("device", out);
  const PartKeys<&Machine::device, &Device::encode> encode("device", out);
  const PartKeys<&Machine::device, &Device::memory> memory("device", out);
  const PartKeys<&Machine::device, &Device::floor> floor("device", out);
  const PartKeys<&Machine::device, &Device::copies> copies("device", out);
  keys.add<&Device::arch>("arch", kNone, 0, 1e6);
  for (size_t p = 0; p < kNumPrecisions; ++p) {
    out.push_back(by_precision<&Machine::device, &Device::peak_flops>("peak_flops", p,
                                                                      kFlopsPerSecond, kMaxFlops));
  }
  for (size_t p = 0; p < kNumPrecisions; ++p) {
    out.push_back(by_precision<&Machine::device, &Device::gemm, &GemmRates::efficiency>(
        "gemm_efficiency", p, kNone, 1.0));
  }
  gemm.add<&GemmRates::sustained_efficiency>("gemm_sustained_efficiency", kNone, 1e-6, 1);
  gemm.add<&GemmRates::sustained_spread>("sustained_spread", kNone, 0, 0.2);
  forward.add<&AttentionRates::efficiency>("attention_forward_efficiency", kNone, 0, 1);
  backward.add<&AttentionRates::efficiency>("attention_backward_efficiency", kNone, 0, 1);
  forward.add<&AttentionRates::overhead>("attention_forward_overhead", kNone, 0, 1e6);
  backward.add<&AttentionRates::overhead>("attention_backward_overhead", kNone, 0, 1e6);
  forward.add<&AttentionRates::tail>("attention_forward_tail", kNone, 0, 1e3);
  backward.add<&AttentionRates::tail>("attention_backward_tail", kNone, 0, 1e3);
  forward.add<&AttentionRates::softmax_columns>("attention_softmax_columns", kNone, 0, 1e4);
  backward.add<&AttentionRates::softmax_columns>("attention_backward_softmax_columns", kNone, 0,
                                                 1e4);
  power.add<&PowerShares::attention>("attention_power", kNone, 0, 10);
  power.add<&PowerShares::memory>("memory_power", kNone, 0, 1);
  power.add<&PowerShares::collective>("collective_power", kNone, 0, 1);
  keys.add<&Device::num_sms>("num_sms", kNone, 1, 1e6);
  gemm.add<&GemmRates::k_overhead>("gemm_k_overhead", kNone, 0, 1e6);
  gemm.add<&GemmRates::kernel_overhead>("gemm_kernel_overhead", kNone, 0, 1e6);
  gemm.add<&GemmRates::clock_exponent>("gemm_clock_exponent", kNone, 0.1, 1);
  gemm.add<&GemmRates::alignment_share>("gemm_alignment_share", kNone, 1e-3, 1);
  gemm.add<&GemmRates::odd_share>("gemm_odd_share", kNone, 1e-3, 1);
  gemm.add<&GemmRates::rows_share>("gemm_rows_share", kNone, 1e-3, 1);
  gemm.add<&GemmRates::parts_share>("gemm_parts_share", kNone, 1e-3, 1);
  power.add<&PowerShares::low_precision>("gemm_codes_power", kNone, 0, 2);
  encode.add<&EncodeShares::tensor_share>("encode_tensor_share", kNone, 1e-3, 1);
  encode.add<&EncodeShares::rows_share>("encode_rows_share", kNone, 1e-3, 1);
  encode.add<&EncodeShares::parts_share>("encode_parts_share", kNone, 1e-3, 1);
  memory.add<&MemoryRates::bytes>("memory_bytes", kBytes, 1, kMaxBytes);
  memory.add<&MemoryRates::bytes_per_s>("memory_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  memory.add<&MemoryRates::efficiency>("memory_efficiency", kNone, 1e-6, 1);
  memory.add<&MemoryRates::half_bytes>("memory_half_bytes", kBytes, 0, kMaxBytes);
  keys.add<&Device::launch_s>("launch_s", kSeconds, 0, kMaxShort);
  memory.add<&MemoryRates::reserve_bytes>("reserve_bytes", kBytes, 0, kMaxBytes);
  floor.add<&DeviceRates::gemm_flops_bf16>("floor_flops_bf16", kFlopsPerSecond, 0, kMaxFlops);
  floor.add<&DeviceRates::bytes_per_s>("floor_bytes_per_s", kBytesPerSecond, 0, kMaxRate);
  copies.add<&CopyRates::to_host_bytes_per_s>("to_host_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  copies.add<&CopyRates::from_host_bytes_per_s>("from_host_bytes_per_s", kBytesPerSecond, 1,
                                                kMaxRate);
  copies.add<&CopyRates::snapshot_bytes_per_s>("snapshot_bytes_per_s", kBytesPerSecond, 0,
                                               kMaxRate);
  copies.add<&CopyRates::save_bytes_per_s>("save_bytes_per_s", kBytesPerSecond, 0, kMaxRate);
  keys.add<&Device::verified_devices>("verified_devices", kNone, 0, kMaxDevices);
}

void add_software(std::vector<MachineKey>& out) {
  const PartKeys<&Machine::software> keys("software", out);
  keys.add<&Software::host_launch_s>("host_launch_s", kSeconds, 0, kMaxShort);
  keys.add<&Software::host_block_s>("host_block_s", kSeconds, 0, kMaxShort);
  keys.add<&Software::host_ahead>("host_ahead", kNone, 0, 1);
  keys.add<&Software::own_casts>("own_casts", kNone, 0, 1);
  keys.add<&Software::low_share>("codes_share", kNone, 1e-3, 2);
  keys.add<&Software::cast_reads>("cast_reads", kNone, 0, 100);
  keys.add<&Software::gathers_low>("gathers_codes", kNone, 0, 1);
  keys.add<&Software::collective_call_s>("collective_call_s", kSeconds, 0, kMaxShort);
  keys.add<&Software::compute_slowdown>("compute_slowdown", kNone, 1.0, 100);
  keys.add<&Software::collective_slowdown>("collective_slowdown", kNone, 1.0, 100);
  keys.add<&Software::copy_engine_slowdown>("copy_engine_slowdown", kNone, 1.0, 100);
  keys.add<&Software::message_slowdown>("message_slowdown", kNone, 1.0, 100);
  keys.add<&Software::message_sms>("message_sms", kNone, 0, 1e4);
  keys.add<&Software::step_overhead_s>("step_overhead_s", kSeconds, 0, kMaxLong);
  keys.add<&Software::power_derate>("power_derate", kNone, 1e-3, 1.0);
  keys.add<&Software::elementwise_traffic>("elementwise_traffic", kNone, 0.1, 100);
  keys.add<&Software::attention_share>("attention_share", kNone, 1e-3, 2);
  keys.add<&Software::attention_pair_bytes>("attention_pair_bytes", kBytes, 0, 1e3);
  keys.add<&Software::logit_bytes>("logit_bytes", kBytes, 0, 1e3);
  keys.add<&Software::tensor_parallel_overlap>("tensor_parallel_overlap", kNone, 0, 1);
  keys.add<&Software::covers_collectives>("covers_collectives", kNone, 0, 1);
  keys.add<&Software::merges_matmuls>("merges_products", kNone, 0, 1);
  keys.add<&Software::keeps_copies>("keeps_copies", kNone, 0, 1);
  keys.add<&Software::device_graphs>("device_graphs", kNone, 0, 1);
  keys.add<&Software::whole_sequences>("whole_sequences", kNone, 0, 1);
  keys.add<&Software::gradient_bytes>("gradient_bytes", kBytes, 0.5, 8);
  keys.add<&Software::reduction_overlap>("reduction_overlap", kNone, 0, 1);
  keys.add<&Software::gather_overlap>("gather_overlap", kNone, 0, 1);
}

void add_storage(std::vector<MachineKey>& out) {
  const PartKeys<&Machine::storage> keys("storage", out);
  keys.add<&Storage::devices_per_node>("devices_per_node", kNone, 1, kMaxDevices);
  keys.add<&Storage::write_bytes_per_s>("write_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  keys.add<&Storage::read_bytes_per_s>("read_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  keys.add<&Storage::total_bytes_per_s>("total_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  keys.add<&Storage::commit_s>("commit_s", kSeconds, 0, kMaxLong);
}

void add_failures(std::vector<MachineKey>& out) {
  const PartKeys<&Machine::failures> keys("failures", out);
  keys.add<&Failures::per_device_s>("per_device_s", kPerSecond, 0, 1.0);
  keys.add<&Failures::detect_s>("detect_s", kSeconds, 0, kMaxLong);
  keys.add<&Failures::restart_s>("restart_s", kSeconds, 0, kMaxLong);
  keys.add<&Failures::repair_s>("repair_s", kSeconds, 0, kMaxLong);
}

void add_level(const Machine& m, size_t level, std::vector<MachineKey>& out) {
  const auto add = [&]<auto Field>(std::string_view name, Dimension dimension, double min,
                                   double max) {
    out.push_back(of_level<Field>(m, level, name, dimension, min, max));
  };
  add.operator()<&Level::num_devices>("num_devices", kNone, 0, kMaxDevices);
  add.operator()<&Level::bytes_per_s>("bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  add.operator()<&Level::pair_bytes_per_s>("pair_bytes_per_s", kBytesPerSecond, 0, kMaxRate);
  add.operator()<&Level::efficiency>("efficiency", kNone, 1e-6, 1);
  add.operator()<&Level::latency_s>("latency_s", kSeconds, 0, kMaxShort);
  add.operator()<&Level::base_s>("base_s", kSeconds, 0, kMaxShort);
  add.operator()<&Level::sqrt_s>("sqrt_s", kSecondsPerRootMib, 0, kMaxShort);
  add.operator()<&Level::ring_end_bytes_per_s>("ring_end_bytes_per_s", kBytesPerSecond, 0,
                                               kMaxRate);
  add.operator()<&Level::switch_reduce_min_devices>("switch_reduce_min_devices", kNone, 0,
                                                    kMaxDevices);
  add.operator()<&Level::switch_reduce_bytes_per_s>("switch_reduce_bytes_per_s", kBytesPerSecond, 0,
                                                    kMaxRate);
  add.operator()<&Level::switch_reduce_base_s>("switch_reduce_base_s", kSeconds, 0, kMaxShort);
  add.operator()<&Level::oversubscription>("oversubscription", kNone, 1.0, 1e3);
}

// Reads the tile of a key such as "device.tile_256x128".
std::optional<GemmTile> tile_of(std::string_view name) {
  if (name.substr(0, kTilePrefix.size()) != kTilePrefix) return std::nullopt;
  GemmTile tile;
  const char* const end = name.data() + name.size();
  const auto m = std::from_chars(name.data() + kTilePrefix.size(), end, tile.m);
  if (m.ec != std::errc() || m.ptr == end || *m.ptr != 'x') return std::nullopt;
  const auto n = std::from_chars(m.ptr + 1, end, tile.n);
  if (n.ec != std::errc() || n.ptr != end) return std::nullopt;
  constexpr int kMaxSide = 4096;
  if (tile.m < 1 || tile.n < 1 || tile.m > kMaxSide || tile.n > kMaxSide) return std::nullopt;
  return tile;
}

// Returns the least value of a number besides 0, which means none: times are divided by rates and
// efficiencies.
double least_of(const MachineKey& key) {
  if (key.dimension == kBytesPerSecond || key.dimension == kFlopsPerSecond) return 1.0;
  return key.name.find("efficiency") != std::string::npos ? 1e-6 : 0.0;
}

}  // namespace

std::vector<MachineKey> all_keys(const Machine& machine) {
  std::vector<MachineKey> out;
  add_device(out);
  for (size_t t = 0; t < machine.device.gemm.tiles.size(); ++t) out.push_back(of_tile(machine, t));
  add_software(out);
  add_storage(out);
  add_failures(out);
  for (size_t l = 0; l < machine.levels.size(); ++l) add_level(machine, l, out);
  return out;
}

void add_tile(Machine& machine, std::string_view name) {
  const auto tile = tile_of(name);
  if (!tile) return;
  auto& tiles = machine.device.gemm.tiles;
  const bool is_known = std::any_of(tiles.begin(), tiles.end(), [&](const GemmTile& t) {
    return t.m == tile->m && t.n == tile->n;
  });
  if (is_known) return;
  TOK_REQUIRE(tiles.size() < kMaxTiles, "{}: wanted at most {} tiles", name, kMaxTiles);
  tiles.push_back(*tile);
}

MachineKey find_key(const Machine& machine, std::string_view name, std::string_view who) {
  std::vector<std::string> names;
  for (MachineKey& key : all_keys(machine)) {
    if (key.name == name) return key;
    names.push_back(key.name);
  }
  fail("{}: unknown key {}{}", who, printable(name), nearest_hint(name, names));
}

void assign(Machine& machine, const MachineKey& key, double in_si, std::string_view source,
            std::string_view who) {
  const double least = least_of(key);
  const auto text = [&](double value) { return text_of(value, key.dimension); };
  TOK_REQUIRE(in_si >= key.min && in_si <= key.max, "{}: {}: wanted {} to {}, got {}", who,
              key.name, text(key.min), text(key.max), text(in_si));
  TOK_REQUIRE(in_si == 0.0 || in_si >= least, "{}: {}: wanted 0 or {} to {}, got {}", who, key.name,
              text(least), text(key.max), text(in_si));
  TOK_REQUIRE(!key.is_whole || in_si == std::floor(in_si), "{}: {}: wanted a whole number, got {}",
              who, key.name, in_si);
  key.set(machine, key.at, in_si);
  for (auto& [name, old] : machine.sources) {
    if (name == key.name) {
      old = source;
      return;
    }
  }
  machine.sources.emplace_back(key.name, source);
}

bool is_level_name(std::string_view name) {
  constexpr size_t kMaxName = 32;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxName || !std::all_of(name.begin(), name.end(), is_plain)) {
    return false;
  }
  return name != "device" && name != "software" && name != "storage" && name != "failures";
}

}  // namespace tokamak::price
