#include "tokamak/run/presets.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/embedded.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/core/toml_reader.h"

namespace tokamak {

std::span<const EmbeddedFile> preset_files();

namespace {

constexpr std::string_view kCatalog = "catalog.toml";

std::string text_of(std::string_view file) {
  for (const EmbeddedFile& f : preset_files()) {
    if (f.name == file) return std::string(f.text);
  }
  throw Error(fmt::format("presets: there is no {}", file));
}

double number_of(const Entry& entry) {
  if (const auto* whole = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*whole);
  const auto* number = std::get_if<double>(&entry.value);
  TOK_REQUIRE(number != nullptr, "{}: {}: wanted a number, got {}", entry.origin, entry.name,
              value_description(entry.value));
  return *number;
}

std::string string_of(const Entry& entry) {
  const auto* text = std::get_if<std::string>(&entry.value);
  TOK_REQUIRE(text != nullptr, "{}: {}: wanted a string, got {}", entry.origin, entry.name,
              value_description(entry.value));
  return *text;
}

void set_field(Preset& preset, const std::string& field, const Entry& entry) {
  const std::pair<const char*, std::string Preset::*> texts[] = {
      {"title", &Preset::title},         {"config", &Preset::config}, {"cluster", &Preset::cluster},
      {"precision", &Preset::precision}, {"source", &Preset::source}, {"note", &Preset::note},
      {"site", &Preset::site},           {"time", &Preset::time},     {"count", &Preset::count}};
  for (const auto& [name, member] : texts) {
    if (field != name) continue;
    preset.*member = string_of(entry);
    return;
  }
  const std::pair<const char*, std::optional<double> Preset::*> figures[] = {
      {"step_s", &Preset::step_s},
      {"tokens_per_s", &Preset::tokens_per_s},
      {"tflops", &Preset::tflops},
      {"mfu", &Preset::mfu},
      {"count_tflops", &Preset::count_tflops}};
  for (const auto& [name, member] : figures) {
    if (field != name) continue;
    preset.*member = number_of(entry);
    return;
  }
  if (field == "gpus") {
    preset.num_gpus = static_cast<int64_t>(number_of(entry));
    return;
  }
  if (field == "count_vocab") {
    preset.count_vocab = static_cast<int64_t>(number_of(entry));
    return;
  }
  const auto* overrides = std::get_if<std::vector<std::string>>(&entry.value);
  TOK_REQUIRE(field == "set" && overrides != nullptr, "{}: {}: no such key of a preset",
              entry.origin, entry.name);
  preset.overrides = *overrides;
}

std::vector<Preset> read_catalog() {
  std::vector<Preset> presets;
  for (const Entry& entry :
       read_toml(text_of(kCatalog), fmt::format("presets/{}", kCatalog)).entries) {
    const size_t dot = entry.name.rfind('.');
    TOK_REQUIRE(dot != std::string::npos, "{}: {}: outside any preset", entry.origin, entry.name);
    std::string name = entry.name.substr(0, dot);
    // A TOML key that contains a dot is in quotes.
    std::erase(name, '"');
    if (presets.empty() || presets.back().name != name) presets.push_back({.name = name});
    set_field(presets.back(), entry.name.substr(dot + 1), entry);
  }
  return presets;
}

}  // namespace

const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> kPresets = read_catalog();
  return kPresets;
}

const Preset& find_preset(const std::string& name) {
  const std::vector<Preset>& all = all_presets();
  for (const Preset& preset : all) {
    if (preset.name == name) return preset;
  }
  std::vector<std::string> names;
  for (const Preset& preset : all) names.push_back(preset.name);
  fail("--preset {}: no such preset{}; `tokamak price --preset list` prints all", printable(name),
       nearest_hint(name, names));
}

LoadedConfig load_preset(const Preset& preset, std::span<const std::string> overrides) {
  std::vector<std::string> all;
  for (const std::string& o : preset.overrides) all.push_back("--" + o);
  all.insert(all.end(), overrides.begin(), overrides.end());
  return parse_toml_text(text_of(preset.config), "presets/" + preset.config, all);
}

std::string presets_text() {
  size_t width = 0;
  for (const Preset& p : all_presets()) width = std::max(width, p.cluster.size());
  std::string text;
  for (const Preset& p : all_presets()) {
    text += fmt::format("{:<34}{:>6} x {:<{}}  {:<6}{}\n", p.name, p.num_gpus, p.cluster, width,
                        p.precision, p.title);
  }
  return text;
}

std::string published_text(const Preset& p) {
  std::vector<std::string> figures;
  if (p.step_s) figures.push_back(fmt::format("{:.2f} s a step", *p.step_s));
  if (p.tokens_per_s) figures.push_back(fmt::format("{:.0f} tokens/s/GPU", *p.tokens_per_s));
  if (p.tflops) figures.push_back(fmt::format("{:.1f} TFLOP/s", *p.tflops));
  if (p.mfu) figures.push_back(fmt::format("MFU {:.2f} %", *p.mfu));
  if (figures.empty()) figures.emplace_back("no figure");
  return fmt::format("published: {}  ({}{}{})\n", fmt::join(figures, ", "), p.source,
                     p.note.empty() ? "" : "; ", p.note);
}

}  // namespace tokamak
