#include "tokamak/price/machine/machine_file.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/core/toml_reader.h"
#include "tokamak/price/machine/machine_key.h"

namespace tokamak::price {

namespace {

constexpr std::string_view kExtension = ".toml";
constexpr int kMaxDepth = 8;
constexpr int kMaxFiles = 64;
constexpr size_t kMaxNumbers = 4096;

// One number as a file has it.
struct Written {
  std::string name;
  std::string origin;
  std::optional<double> value;
  std::optional<std::string> unit;
  std::optional<std::string> source;
};

std::string text_value(const Entry& entry) {
  const auto* text = std::get_if<std::string>(&entry.value);
  TOK_REQUIRE(text != nullptr, "{}: {}: wanted a text, got {}", entry.origin, printable(entry.name),
              value_description(entry.value));
  return *text;
}

// Whether device_names() reads the key, from the file itself and not from its bases.
bool is_of_names(std::string_view key) {
  return key == "device.driver_names" || key == "device.aliases" || key == "device.machine";
}

bool is_file_name(std::string_view name) {
  return (name.size() > kExtension.size() && name.ends_with(kExtension)) ||
         name.find('/') != std::string_view::npos;
}

double number_value(const Entry& entry, std::string_view name) {
  if (const auto* whole = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*whole);
  const auto* real = std::get_if<double>(&entry.value);
  TOK_REQUIRE(real != nullptr, "{}: {}: wanted a number as its value, got {}", entry.origin,
              printable(name), value_description(entry.value));
  return *real;
}

// "device.num_sms.value" is the value of "device.num_sms".
void add_part(const Entry& entry, std::vector<Written>& out) {
  const size_t dot = entry.name.rfind('.');
  const std::string name = dot == std::string::npos ? entry.name : entry.name.substr(0, dot);
  const std::string part = dot == std::string::npos ? "" : entry.name.substr(dot + 1);
  TOK_REQUIRE(part == "value" || part == "unit" || part == "source",
              "{}: {}: wanted a known text (name, about, base, levels, device.name) or a number as "
              "{{ value = 1, "
              "unit = \"s\", source = \"...\" }}",
              entry.origin, printable(entry.name));
  auto found =
      std::find_if(out.begin(), out.end(), [&](const Written& w) { return w.name == name; });
  if (found == out.end()) {
    TOK_REQUIRE(out.size() < kMaxNumbers, "{}: wanted at most {} numbers", entry.origin,
                kMaxNumbers);
    out.push_back({.name = name, .origin = entry.origin});
    found = out.end() - 1;
  }
  if (part == "value") {
    found->value = number_value(entry, name);
  } else {
    (part == "unit" ? found->unit : found->source) = text_value(entry);
  }
}

void add_levels(const Entry& entry, Machine& machine) {
  const std::vector<std::string> names = text_values(entry);
  for (auto at = names.begin(); at != names.end(); ++at) {
    const std::string& name = *at;
    TOK_REQUIRE(std::find(names.begin(), at, name) == at, "{}: levels: \"{}\": given twice",
                entry.origin, printable(name));
    TOK_REQUIRE(is_level_name(name),
                "{}: levels: \"{}\": wanted a name of small letters, digits, _ and - that is no "
                "section",
                entry.origin, printable(name));
    const bool is_known = std::any_of(machine.levels.begin(), machine.levels.end(),
                                      [&](const Level& level) { return level.name == name; });
    if (!is_known) machine.levels.push_back({.name = name});
    TOK_REQUIRE(machine.levels.size() <= kMaxLevels, "{}: levels: wanted at most {}", entry.origin,
                kMaxLevels);
  }
}

std::vector<std::string> names_and_parts() {
  std::vector<std::string> names = machine_names();
  const std::vector<std::string> parts = machine_part_names();
  names.insert(names.end(), parts.begin(), parts.end());
  return names;
}

class MachineReader {
 public:
  MachineReader(Machine& machine, bool may_read_files)
      : machine_(machine), may_read_files_(may_read_files) {}

  void read_name(const std::string& name, const std::filesystem::path& folder,
                 const std::string& who) {
    if (const auto text = built_in_machine_file(name)) return read_text(*text, name + ".toml", "");
    TOK_REQUIRE(is_file_name(name),
                "{}no machine \"{}\"{}; `tokamak price --cluster list` prints all, and a file is "
                "NAME.toml",
                who, printable(name), nearest_hint(name, names_and_parts()));
    TOK_REQUIRE(may_read_files_, "{}\"{}\": wanted the name of a built-in machine or part", who,
                printable(name));
    const std::filesystem::path path = folder / name;
    read_text(read_file(path, kSmallFileBytes), path.string(), path.parent_path());
  }

  void read_text(std::string_view text, const std::string& name,
                 const std::filesystem::path& folder) {
    TOK_REQUIRE(++depth_ <= kMaxDepth && ++files_ <= kMaxFiles,
                "{}: base: files that are each other's base, or more than {}", name, kMaxFiles);
    const TomlEntries toml = read_toml(text, name);
    std::vector<Written> numbers;
    std::vector<const Entry*> levels;
    for (const Entry& entry : toml.entries) {
      if (entry.name == "base") {
        for (const std::string& base : text_values(entry)) {
          read_name(base, folder, entry.origin + ": base: ");
        }
      } else if (entry.name == "levels") {
        levels.push_back(&entry);
      } else if (entry.name != "name" && entry.name != "about" && entry.name != "device.name" &&
                 !is_of_names(entry.name)) {
        add_part(entry, numbers);
      }
    }
    for (const Entry* entry : levels) add_levels(*entry, machine_);
    for (const Entry& entry : toml.entries) {
      if (entry.name == "name") machine_.name = printable(text_value(entry));
      if (entry.name == "device.name") machine_.device.name = printable(text_value(entry));
      if (entry.name == "about") machine_.about = printable(text_value(entry));
    }
    for (const Written& number : numbers) set(number);
    --depth_;
  }

 private:
  void set(const Written& number) {
    const std::string who = fmt::format("{}: {}", number.origin, printable(number.name));
    add_tile(machine_, number.name);
    const MachineKey key = find_key(machine_, number.name, number.origin);
    TOK_REQUIRE(number.value.has_value(), "{}: no value", who);
    TOK_REQUIRE(number.source.has_value() && !number.source->empty(),
                "{}: no source: say where the number is from", who);
    const double si = si_per_unit(key.dimension, number.unit.value_or(""), who);
    assign(machine_, key, *number.value * si, *number.source, number.origin);
  }

  Machine& machine_;
  bool may_read_files_;
  int depth_ = 0;
  int files_ = 0;
};

}  // namespace

void validate(const Machine& m) {
  const std::string& name = m.name;
  TOK_REQUIRE(
      m.device.peak_flops[Precision::kBf16] > 0.0 || m.device.peak_flops[Precision::kFp32] > 0.0,
      "{}: no device: device.peak_flops_bf16 is missing", name);
  for (size_t p = 0; p < kNumPrecisions; ++p) {
    TOK_REQUIRE(m.device.peak_flops[p] == 0.0 || m.device.gemm.efficiency[p] > 0.0,
                "{}: device.gemm_efficiency_{} is missing or 0", name,
                name_of(static_cast<Precision>(p)));
  }
  TOK_REQUIRE(!m.device.gemm.tiles.empty(),
              "{}: device.tile_128x128, or of another size, is missing", name);
  TOK_REQUIRE(m.device.attention_forward.efficiency > 0.0,
              "{}: device.attention_forward_efficiency is missing or 0", name);
  TOK_REQUIRE(m.device.attention_backward.efficiency > 0.0,
              "{}: device.attention_backward_efficiency is missing or 0", name);
  TOK_REQUIRE(m.device.memory.bytes > 0.0, "{}: device.memory_bytes is missing", name);
  TOK_REQUIRE(m.device.memory.bytes_per_s > 0.0, "{}: device.memory_bytes_per_s is missing", name);
  TOK_REQUIRE(m.device.memory.reserve_bytes < m.device.memory.bytes,
              "{}: device.reserve_bytes: wanted less than device.memory_bytes, {}, got {}", name,
              text_of(m.device.memory.bytes, Dimension::kBytes),
              text_of(m.device.memory.reserve_bytes, Dimension::kBytes));
  int inner = 1;
  for (size_t l = 0; l < m.levels.size(); ++l) {
    const Level& level = m.levels[l];
    const bool is_last = l + 1 == m.levels.size();
    TOK_REQUIRE(level.bytes_per_s > 0.0, "{}: {}.bytes_per_s is missing", name, level.name);
    TOK_REQUIRE(level.num_devices > 0 || is_last,
                "{}: {}.num_devices is 0, any number: only the outermost level may be so", name,
                level.name);
    TOK_REQUIRE(
        level.num_devices == 0 || (level.num_devices > inner && level.num_devices % inner == 0),
        "{}: {}.num_devices: wanted {}, got {}", name, level.name,
        inner == 1 ? "2 or more (a level of one device is to be left out)"
                   : fmt::format("a multiple of {}, the devices of a domain inside it, and more "
                                 "than that",
                                 inner),
        level.num_devices);
    TOK_REQUIRE(level.switch_reduce_min_devices == 0 || level.switch_reduce_bytes_per_s > 0.0,
                "{}: {}.switch_reduce_bytes_per_s is missing", name, level.name);
    inner = level.num_devices;
  }
}

std::string stem_of(std::string_view file) {
  return std::string(file.substr(0, file.size() - kExtension.size()));
}

std::vector<std::string> text_values(const Entry& entry) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&entry.value)) return *list;
  return {text_value(entry)};
}

Machine read_machine_part(const std::string& name) {
  Machine machine;
  MachineReader(machine, false).read_name(name, "", "");
  return machine;
}

Machine load_machine(const std::string& names) {
  Machine machine;
  MachineReader reader(machine, true);
  std::string joined;
  std::error_code unreadable;
  const bool is_one_file = is_file_name(names) && std::filesystem::exists(names, unreadable);
  const bool is_joined = !is_one_file && names.find('+') != std::string::npos;
  size_t begin = 0;
  while (begin <= names.size()) {
    const size_t end = is_joined ? std::min(names.find('+', begin), names.size()) : names.size();
    const std::string name = names.substr(begin, end - begin);
    reader.read_name(name, "", "");
    const bool is_file = is_file_name(name);
    joined +=
        (begin > 0 ? "+" : "") + (is_file ? std::filesystem::path(name).stem().string() : name);
    begin = end + 1;
  }
  if (machine.name.empty() || is_joined) machine.name = printable(joined);
  validate(machine);
  return machine;
}

Machine parse_machine(std::string_view text, const std::string& name) {
  Machine machine;
  MachineReader(machine, false).read_text(text, name, "");
  if (machine.name.empty()) machine.name = name;
  validate(machine);
  return machine;
}

}  // namespace tokamak::price
