#include "tokamak/config/load.h"

#include <fmt/format.h>

#include "tokamak/config/key_table.h"
#include "tokamak/config/merge.h"
#include "tokamak/config/nearest.h"
#include "tokamak/config/overrides.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/local_path.h"
#include "tokamak/core/toml_reader.h"

namespace tokamak {

namespace {

bool is_section(const std::string& name) {
  for (const Key& key : all_keys()) {
    if (key.name.substr(0, name.size() + 1) == name + ".") return true;
  }
  for (const AcceptedName& key : accepted_names()) {
    if (key.name.substr(0, name.size() + 1) == name + ".") return true;
  }
  return false;
}

void add_toml(Merge& merge, std::string_view text, const std::string& name) {
  const TomlEntries toml = read_toml(text, name);
  for (const Entry& entry : toml.entries) {
    if (is_section(entry.name)) {
      merge.error(entry, Source::kFile,
                  fmt::format("wanted a section, got {}", value_description(entry.value)));
    } else {
      merge.add(entry, Source::kFile);
    }
  }
  for (const Entry& entry : toml.empty_tables) {
    if (find_key(entry.name) != nullptr)
      merge.error(entry, Source::kFile, "wanted a value, got a section");
  }
}

LoadedConfig merge_all(std::optional<std::string_view> text, const std::string& name,
                       const std::vector<Entry>& overrides, std::vector<std::string> errors) {
  Merge merge;
  if (text) add_toml(merge, *text, name);
  for (const Entry& entry : overrides) merge.add(entry, Source::kOverride);
  return merge.finish(std::move(errors));
}

}  // namespace

std::string needs_line(const Need& need) {
  return fmt::format("needs: {} = {}: {}", need.key, need.value, need.reason);
}

LoadedConfig parse_toml_text(std::string_view text, const std::string& name,
                             std::span<const std::string> overrides) {
  std::vector<std::string> errors;
  const std::vector<Entry> entries = parse_overrides(overrides, errors);
  return merge_all(text, name, entries, std::move(errors));
}

LoadedConfig load_config(const std::optional<std::filesystem::path>& toml,
                         std::span<const std::string> overrides) {
  std::vector<std::string> errors;
  const std::vector<Entry> entries = parse_overrides(overrides, errors);
  std::optional<std::string> path;
  if (toml) path = toml->string();
  for (const Entry& entry : entries) {
    const auto* given = std::get_if<std::string>(&entry.value);
    if (entry.name != "job.config_file" || given == nullptr) continue;
    TOK_REQUIRE(!toml || *path == *given,
                "--job.config_file: wanted one configuration file, got {} and {}", *path, *given);
    path = *given;
  }
  std::optional<std::string> text;
  if (path) {
    const std::string scheme = why_not_local(*path);
    TOK_REQUIRE(scheme.empty(), "configuration file: {}", scheme);
    text = read_file(*path, kSmallFileBytes);
  }
  LoadedConfig loaded = merge_all(text, path.value_or(""), entries, std::move(errors));
  if (path) loaded.config.job.config_file = path;
  return loaded;
}

}  // namespace tokamak
