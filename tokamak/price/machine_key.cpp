#include "tokamak/price/machine_key.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
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

template <auto Part, auto Field>
MachineKey number(std::string name, Dimension dimension, double min, double max) {
  using Type = std::remove_reference_t<decltype((std::declval<Machine&>().*Part).*Field)>;
  return {.name = std::move(name),
          .dimension = dimension,
          .min = min,
          .max = max,
          .is_whole = std::is_integral_v<Type>,
          .get = [](const Machine& m, size_t) { return static_cast<double>((m.*Part).*Field); },
          .set = [](Machine& m, size_t, double v) { (m.*Part).*Field = static_cast<Type>(v); }};
}

template <auto Field>
MachineKey by_precision(std::string_view name, size_t precision, Dimension dimension, double max) {
  return {.name = fmt::format("device.{}_{}", name, name_of(static_cast<Precision>(precision))),
          .dimension = dimension,
          .max = max,
          .get = [](const Machine& m, size_t at) { return (m.device.*Field)[at]; },
          .set = [](Machine& m, size_t at, double v) { (m.device.*Field)[at] = v; },
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
  const GemmTile& t = m.device.tiles[tile];
  return {.name = fmt::format("{}{}x{}", kTilePrefix, t.m, t.n),
          .min = 1e-3,
          .max = 1.0,
          .get = [](const Machine& x, size_t at) { return x.device.tiles[at].efficiency; },
          .set = [](Machine& x, size_t at, double v) { x.device.tiles[at].efficiency = v; },
          .at = tile};
}

void add_device(std::vector<MachineKey>& out) {
  constexpr auto kDevice = &Machine::device;
  out.push_back(number<kDevice, &Device::arch>("device.arch", kNone, 0, 1e6));
  for (size_t p = 0; p < kNumPrecisions; ++p) {
    out.push_back(by_precision<&Device::peak_flops>("peak_flops", p, kFlopsPerSecond, kMaxFlops));
  }
  for (size_t p = 0; p < kNumPrecisions; ++p) {
    out.push_back(by_precision<&Device::gemm_efficiency>("gemm_efficiency", p, kNone, 1.0));
  }
  const auto add = [&]<auto Field>(std::string name, Dimension dimension, double min, double max) {
    out.push_back(number<kDevice, Field>("device." + std::move(name), dimension, min, max));
  };
  add.operator()<&Device::gemm_sustained_efficiency>("gemm_sustained_efficiency", kNone, 1e-6, 1);
  add.operator()<&Device::sustained_spread>("sustained_spread", kNone, 0, 0.2);
  add.operator()<&Device::attention_forward_efficiency>("attention_forward_efficiency", kNone, 0,
                                                        1);
  add.operator()<&Device::attention_backward_efficiency>("attention_backward_efficiency", kNone, 0,
                                                         1);
  add.operator()<&Device::attention_forward_overhead>("attention_forward_overhead", kNone, 0, 1e6);
  add.operator()<&Device::attention_backward_overhead>("attention_backward_overhead", kNone, 0,
                                                       1e6);
  add.operator()<&Device::attention_forward_tail>("attention_forward_tail", kNone, 0, 1e3);
  add.operator()<&Device::attention_backward_tail>("attention_backward_tail", kNone, 0, 1e3);
  add.operator()<&Device::attention_softmax_columns>("attention_softmax_columns", kNone, 0, 1e4);
  add.operator()<&Device::attention_backward_softmax_columns>("attention_backward_softmax_columns",
                                                              kNone, 0, 1e4);
  add.operator()<&Device::attention_power>("attention_power", kNone, 0, 10);
  add.operator()<&Device::memory_power>("memory_power", kNone, 0, 1);
  add.operator()<&Device::collective_power>("collective_power", kNone, 0, 1);
  add.operator()<&Device::num_sms>("num_sms", kNone, 1, 1e6);
  add.operator()<&Device::gemm_k_overhead>("gemm_k_overhead", kNone, 0, 1e6);
  add.operator()<&Device::gemm_kernel_overhead>("gemm_kernel_overhead", kNone, 0, 1e6);
  add.operator()<&Device::gemm_clock_exponent>("gemm_clock_exponent", kNone, 0.1, 1);
  add.operator()<&Device::gemm_alignment_share>("gemm_alignment_share", kNone, 1e-3, 1);
  add.operator()<&Device::gemm_odd_share>("gemm_odd_share", kNone, 1e-3, 1);
  add.operator()<&Device::memory_bytes>("memory_bytes", kBytes, 1, kMaxBytes);
  add.operator()<&Device::memory_bytes_per_s>("memory_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  add.operator()<&Device::memory_efficiency>("memory_efficiency", kNone, 1e-6, 1);
  add.operator()<&Device::memory_half_bytes>("memory_half_bytes", kBytes, 0, kMaxBytes);
  add.operator()<&Device::launch_s>("launch_s", kSeconds, 0, kMaxShort);
  add.operator()<&Device::reserve_bytes>("reserve_bytes", kBytes, 0, kMaxBytes);
  add.operator()<&Device::to_host_bytes_per_s>("to_host_bytes_per_s", kBytesPerSecond, 1, kMaxRate);
  add.operator()<&Device::from_host_bytes_per_s>("from_host_bytes_per_s", kBytesPerSecond, 1,
                                                 kMaxRate);
}

void add_operation(std::vector<MachineKey>& out) {
  constexpr auto kSoftware = &Machine::software;
  out.push_back(number<kSoftware, &Software::host_launch_s>("software.host_launch_s", kSeconds, 0,
                                                            kMaxShort));
  out.push_back(
      number<kSoftware, &Software::host_block_s>("software.host_block_s", kSeconds, 0, kMaxShort));
  out.push_back(number<kSoftware, &Software::host_ahead>("software.host_ahead", kNone, 0, 1));
  out.push_back(number<kSoftware, &Software::collective_call_s>("software.collective_call_s",
                                                                kSeconds, 0, kMaxShort));
  out.push_back(
      number<kSoftware, &Software::compute_slowdown>("software.compute_slowdown", kNone, 1.0, 100));
  out.push_back(number<kSoftware, &Software::collective_slowdown>("software.collective_slowdown",
                                                                  kNone, 1.0, 100));
  out.push_back(
      number<kSoftware, &Software::message_slowdown>("software.message_slowdown", kNone, 1.0, 100));
  out.push_back(number<kSoftware, &Software::message_sms>("software.message_sms", kNone, 0, 1e4));
  out.push_back(number<kSoftware, &Software::step_overhead_s>("software.step_overhead_s", kSeconds,
                                                              0, kMaxLong));
  out.push_back(
      number<kSoftware, &Software::power_derate>("software.power_derate", kNone, 1e-3, 1.0));
  out.push_back(number<kSoftware, &Software::elementwise_traffic>("software.elementwise_traffic",
                                                                  kNone, 0.1, 100));
  out.push_back(
      number<kSoftware, &Software::attention_share>("software.attention_share", kNone, 1e-3, 2));
  out.push_back(number<kSoftware, &Software::attention_pair_bytes>("software.attention_pair_bytes",
                                                                   kBytes, 0, 1e3));
  out.push_back(number<kSoftware, &Software::logit_bytes>("software.logit_bytes", kBytes, 0, 1e3));
  out.push_back(number<kSoftware, &Software::tensor_parallel_overlap>(
      "software.tensor_parallel_overlap", kNone, 0, 1));
  out.push_back(
      number<kSoftware, &Software::gradient_bytes>("software.gradient_bytes", kBytes, 0.5, 8));
  out.push_back(
      number<kSoftware, &Software::reduction_overlap>("software.reduction_overlap", kNone, 0, 1));
  out.push_back(
      number<kSoftware, &Software::gather_overlap>("software.gather_overlap", kNone, 0, 1));
  constexpr auto kStorage = &Machine::storage;
  out.push_back(number<kStorage, &Storage::devices_per_node>("storage.devices_per_node", kNone, 1,
                                                             kMaxDevices));
  out.push_back(number<kStorage, &Storage::write_bytes_per_s>("storage.write_bytes_per_s",
                                                              kBytesPerSecond, 1, kMaxRate));
  out.push_back(number<kStorage, &Storage::read_bytes_per_s>("storage.read_bytes_per_s",
                                                             kBytesPerSecond, 1, kMaxRate));
  out.push_back(number<kStorage, &Storage::total_bytes_per_s>("storage.total_bytes_per_s",
                                                              kBytesPerSecond, 1, kMaxRate));
  out.push_back(number<kStorage, &Storage::commit_s>("storage.commit_s", kSeconds, 0, kMaxLong));
  constexpr auto kFailures = &Machine::failures;
  out.push_back(
      number<kFailures, &Failures::per_device_s>("failures.per_device_s", kPerSecond, 0, 1.0));
  out.push_back(number<kFailures, &Failures::detect_s>("failures.detect_s", kSeconds, 0, kMaxLong));
  out.push_back(
      number<kFailures, &Failures::restart_s>("failures.restart_s", kSeconds, 0, kMaxLong));
  out.push_back(number<kFailures, &Failures::repair_s>("failures.repair_s", kSeconds, 0, kMaxLong));
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

// "device.tile_256x128"
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

}  // namespace

std::vector<MachineKey> all_keys(const Machine& machine) {
  std::vector<MachineKey> out;
  add_device(out);
  for (size_t t = 0; t < machine.device.tiles.size(); ++t) out.push_back(of_tile(machine, t));
  add_operation(out);
  for (size_t l = 0; l < machine.levels.size(); ++l) add_level(machine, l, out);
  return out;
}

void add_tile(Machine& machine, std::string_view name) {
  const auto tile = tile_of(name);
  if (!tile) return;
  auto& tiles = machine.device.tiles;
  const bool is_known = std::any_of(tiles.begin(), tiles.end(), [&](const GemmTile& t) {
    return t.m == tile->m && t.n == tile->n;
  });
  if (is_known) return;
  TOK_REQUIRE(tiles.size() < kMaxTiles, "{}: wanted at most {} tiles", name, kMaxTiles);
  tiles.push_back(*tile);
}

MachineKey find_key(const Machine& machine, std::string_view name, std::string_view who) {
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (MachineKey& key : all_keys(machine)) {
    if (key.name == name) return key;
    const size_t distance = name_distance(name, key.name);
    if (distance < best) {
      best = distance;
      nearest = key.name;
    }
  }
  fail("{}: unknown key {}; the nearest is {}", who, printable(name), nearest);
}

void assign(Machine& machine, const MachineKey& key, double in_si, std::string_view source,
            std::string_view who) {
  TOK_REQUIRE(in_si >= key.min && in_si <= key.max, "{}: {}: wanted {} to {}, got {}", who,
              key.name, text_of(key.min, key.dimension), text_of(key.max, key.dimension),
              text_of(in_si, key.dimension));
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
