#include "tokamak/price/machine/machine.h"

#include <algorithm>
#include <charconv>

#include "tokamak/core/embedded.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/price/machine/machine_file.h"
#include "tokamak/price/machine/machine_key.h"

namespace tokamak::price {

std::span<const EmbeddedFile> machine_files();
std::span<const EmbeddedFile> device_files();
std::span<const EmbeddedFile> fabric_files();
std::span<const EmbeddedFile> site_files();
std::span<const EmbeddedFile> software_files();

namespace {

void add_stems(std::span<const EmbeddedFile> files, std::vector<std::string>& out) {
  for (const EmbeddedFile& file : files) out.push_back(stem_of(file.name));
}

}  // namespace

std::string_view name_of(Precision precision) {
  constexpr EnumArray<Precision, std::string_view, kNumPrecisions> kNames = {"fp32", "bf16", "fp8",
                                                                             "fp4"};
  return kNames[precision];
}

std::string Machine::describe() const {
  std::string out;
  for (const MachineKey& key : all_keys(*this)) {
    out += fmt::format("{} = {}  ({})\n", key.name, text_of(key.value(*this), key.dimension),
                       source_of(key.name));
  }
  return out;
}

std::string_view Machine::source_of(std::string_view key) const {
  for (const auto& [known, source] : sources) {
    if (known == key) return source;
  }
  return "default";
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  add_stems(machine_files(), names);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> machine_part_names() {
  std::vector<std::string> names;
  add_stems(device_files(), names);
  add_stems(fabric_files(), names);
  add_stems(site_files(), names);
  add_stems(software_files(), names);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string_view> built_in_machine_file(std::string_view name) {
  const std::string lower = lower_case(name);  // as files are called; people write H100
  for (const auto files :
       {machine_files(), device_files(), fabric_files(), site_files(), software_files()}) {
    for (const EmbeddedFile& file : files) {
      if (stem_of(file.name) == lower) return file.text;
    }
  }
  return std::nullopt;
}

std::vector<std::string> machine_keys(const Machine& machine) {
  std::vector<std::string> names;
  for (MachineKey& key : all_keys(machine)) names.push_back(std::move(key.name));
  return names;
}

void set_number(Machine& machine, std::string_view assignment, std::string_view option) {
  const std::string who = fmt::format("{} {}", option, printable(assignment));
  const size_t equals = assignment.find('=');
  TOK_REQUIRE(equals != std::string_view::npos, "{}: wanted KEY=NUMBER UNIT", who);
  const std::string_view name = trimmed(assignment.substr(0, equals));
  const std::string_view text = trimmed(assignment.substr(equals + 1));
  add_tile(machine, name);
  const MachineKey key = find_key(machine, name, who);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TOK_REQUIRE(error == std::errc(), "{}: wanted a number and its unit", who);
  const std::string_view unit = trimmed(text.substr(static_cast<size_t>(end - text.data())));
  assign(machine, key, value * si_per_unit(key.dimension, unit, who), option, who);
}

void require_devices(const Machine& machine, int64_t num_devices, std::string_view who) {
  if (num_devices <= 1) return;
  TOK_REQUIRE(!machine.levels.empty(), "{}: {} has no levels: a machine of one device", who,
              machine.name);
  const Level& outermost = machine.levels.back();
  TOK_REQUIRE(outermost.num_devices == 0 || num_devices <= outermost.num_devices,
              "{}: {} connects {} ({}.num_devices)", who, machine.name, outermost.num_devices,
              outermost.name);
}

Machine with_equal_domains(Machine machine, int64_t num_devices) {
  if (machine.levels.empty()) return machine;
  Level& domain = machine.levels.front();
  const int node = machine.storage.devices_per_node;
  const bool is_said =
      machine.source_of(fmt::format("{}.num_devices", domain.name)).starts_with("--");
  const bool is_of_nodes = domain.num_devices > node && domain.num_devices % node == 0;
  const bool fills_all = num_devices % std::max(1, domain.num_devices) == 0;
  if (is_said || !is_of_nodes || num_devices < domain.num_devices || num_devices % node != 0 ||
      fills_all)
    return machine;
  const int64_t job_nodes = num_devices / node;
  const int domain_nodes = domain.num_devices / node;
  int taken = domain_nodes;
  while (job_nodes % taken != 0) --taken;
  if (2 * taken < domain_nodes) return machine;
  const int whole = domain.num_devices;
  const Level& outermost = machine.levels.back();
  const int64_t num_domains = outermost.num_devices / whole;
  if (num_domains > 0 && num_domains * taken < job_nodes) return machine;
  for (Level& level : machine.levels) {
    if (level.num_devices == 0) continue;
    level.whole_devices = level.num_devices;
    level.num_devices = level.num_devices / whole * taken * node;
  }
  return machine;
}

std::string taken_text(const Machine& machine) {
  if (machine.levels.empty() || machine.levels.front().whole_devices == 0) return "";
  const Level& domain = machine.levels.front();
  const int nodes = domain.num_devices / machine.storage.devices_per_node;
  return fmt::format(
      "{0} devices of each {1} domain of {2}, as sbatch --segment={3} takes them; "
      "--set {1}.num_devices={2} fills one after the other",
      domain.num_devices, domain.name, domain.whole_devices, nodes);
}

std::string unverified_text(const Machine& machine) {
  if (machine.device.verified_devices > 0) return "";
  const std::string_view source = machine.source_of("device.verified_devices");
  return fmt::format("unverified: no price on {} has been within 15 % of a measured run{}",
                     machine.device.name.empty() ? machine.name : machine.device.name,
                     source == "default" ? "" : fmt::format(" ({})", source));
}

Precision precision_of(DType dtype) {
  if (is_scaled(dtype)) return Precision::kFp8;
  return dtype == DType::kBF16 ? Precision::kBf16 : Precision::kFp32;
}

double element_bytes(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return 4.0;
    case Precision::kBf16:
      return 2.0;
    case Precision::kFp8:
      return 1.0;
    case Precision::kFp4:
      return 0.5;
  }
  return 0.0;
}

bool is_low(Precision precision) {
  return precision == Precision::kFp8 || precision == Precision::kFp4;
}

Rates planning_rates(const Machine& machine) {
  const Device& d = machine.device;
  // gfx90a has the number of sm_90, but no fp8.
  if (d.arch == 90 && d.peak_flops[Precision::kFp8] > 0.0) return {};
  const auto best = [&](Precision p) { return d.peak_flops[p] * d.gemm.efficiency[p]; };
  const auto linear = d.peak_flops[Precision::kBf16] > 0.0 ? Precision::kBf16 : Precision::kFp32;
  const double sustained =
      std::min(best(linear), d.peak_flops[linear] * d.gemm.sustained_efficiency);
  Rates rates{.flops = sustained / machine.software.compute_slowdown,
              .bytes_per_s = d.memory.bytes_per_s * d.memory.efficiency,
              .launch_s = d.launch_s,
              .num_sms = d.num_sms,
              .best = d.floor};
  if (rates.best.gemm_flops_bf16 == 0.0) rates.best.gemm_flops_bf16 = best(Precision::kBf16);
  if (rates.best.gemm_flops_f32 == 0.0) rates.best.gemm_flops_f32 = best(Precision::kFp32);
  if (rates.best.bytes_per_s == 0.0) rates.best.bytes_per_s = rates.bytes_per_s;
  if (machine.levels.empty()) return rates;
  const auto large = [](const Level& level) { return level.bytes_per_s * level.efficiency; };
  const auto host = std::find_if(machine.levels.begin(), machine.levels.end(), [&](const Level& l) {
    return l.num_devices == 0 || l.num_devices >= machine.storage.devices_per_node;
  });
  const Level& outermost = machine.levels.back();
  rates.link_bytes_per_s = large(host == machine.levels.end() ? outermost : *host);
  rates.network_bytes_per_s = std::min(rates.link_bytes_per_s, large(outermost));
  return rates;
}

void require_products(const Machine& machine, Precision precision) {
  TOK_REQUIRE(machine.device.peak_flops[precision] > 0.0, "{}: {} has no rate of matmuls in {}",
              machine.name, machine.device.name, name_of(precision));
}

double get_number(const Machine& machine, std::string_view key) {
  return find_key(machine, key, machine.name).value(machine);
}

void set_number(Machine& machine, std::string_view key, double value) {
  add_tile(machine, key);
  assign(machine, find_key(machine, key, machine.name), value, "set", machine.name);
}

}  // namespace tokamak::price
