#include "tokamak/config/load.h"

#include <algorithm>

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

constexpr size_t kMostIncludes = 16;

void add_toml(Merge& merge, std::string_view text, const std::string& name,
              std::vector<std::filesystem::path>& open_files);

std::string read_local(const std::string& path) {
  const std::string scheme = why_not_local(path);
  TOK_REQUIRE(scheme.empty(), "configuration file: {}", scheme);
  return read_file(path, kSmallFileBytes);
}

// Adds the files that an entry `include` names, relative to the file that it is in, in their order.
void add_included(Merge& merge, const Entry& entry, Source source,
                  std::vector<std::filesystem::path>& open_files) {
  Strings names;
  if (const auto* one = std::get_if<std::string>(&entry.value)) names = {*one};
  if (const auto* list = std::get_if<Strings>(&entry.value)) names = *list;
  if (names.empty() || open_files.empty()) {
    merge.error(entry, source,
                open_files.empty() ? "text that is not a file includes nothing"
                                   : fmt::format("wanted a path or a list of paths, got {}",
                                                 value_description(entry.value)));
    return;
  }
  for (const std::string& included : names) {
    const std::filesystem::path path = open_files.back().parent_path() / included;
    std::error_code code;
    const bool is_open = std::any_of(open_files.begin(), open_files.end(), [&](const auto& file) {
      return std::filesystem::equivalent(file, path, code);
    });
    if (is_open || open_files.size() >= kMostIncludes) {
      merge.error(entry, source, fmt::format("{} includes itself", path.string()));
      return;
    }
    const std::string text = read_local(path.string());
    open_files.push_back(path);
    add_toml(merge, text, path.string(), open_files);
    open_files.pop_back();
  }
}

// `open_files` ends in the file that has `text`, after those by which it is included.
void add_toml(Merge& merge, std::string_view text, const std::string& name,
              std::vector<std::filesystem::path>& open_files) {
  const Source source = open_files.size() > 1 ? Source::kIncluded : Source::kFile;
  const TomlEntries toml = read_toml(text, name);
  for (const Entry& entry : toml.entries) {
    if (entry.name == "include") add_included(merge, entry, source, open_files);
  }
  for (const Entry& entry : toml.entries) {
    if (entry.name == "include") continue;
    if (is_section(entry.name)) {
      merge.error(entry, source,
                  fmt::format("wanted a section, got {}", value_description(entry.value)));
    } else {
      merge.add(entry, source);
    }
  }
  for (const Entry& entry : toml.empty_tables) {
    if (find_key(entry.name) != nullptr)
      merge.error(entry, source, "wanted a value, got a section");
  }
}

LoadedConfig merge_all(std::optional<std::string_view> text, const std::string& name,
                       std::vector<std::filesystem::path> open_files,
                       const std::vector<Entry>& overrides, std::vector<std::string> errors) {
  Merge merge;
  if (text) add_toml(merge, *text, name, open_files);
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
  return merge_all(text, name, {}, entries, std::move(errors));
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
  std::vector<std::filesystem::path> open_files;
  if (path) {
    text = read_local(*path);
    open_files.emplace_back(*path);
  }
  LoadedConfig loaded =
      merge_all(text, path.value_or(""), std::move(open_files), entries, std::move(errors));
  if (path) loaded.config.job.config_file = path;
  return loaded;
}

}  // namespace tokamak
