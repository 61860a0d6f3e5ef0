#include "tokamak/config/load.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tokamak/config/accepted.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/merge.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/toml_reader.h"
#include "tokamak/core/value.h"

namespace tokamak {

namespace {

// Returns the key that gives the text its type, or null for names that stand for none.
const Key* typing_key(const std::string& name) {
  if (const Key* key = find_key(name)) return key;
  const AcceptedName* row = find_accepted(name);
  const bool same_type =
      row != nullptr && (row->fate == Fate::kRename || row->fate == Fate::kInvert);
  return same_type ? find_key(row->means) : nullptr;
}

bool is_flag(const std::string& name) {
  if (const Key* key = typing_key(name)) return type_name(*key) == "bool";
  const AcceptedName* row = find_accepted(name);
  return row != nullptr && row->is_flag;
}

// Returns "a.b" for "a.no_b" where a.b is a flag.
std::optional<std::string> negated_flag(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || name.compare(dot + 1, 3, "no_") != 0) return {};
  if (find_key(name) != nullptr || find_accepted(name) != nullptr) return {};
  std::string bare = name.substr(0, dot + 1) + name.substr(dot + 4);
  if (!is_flag(bare)) return {};
  return bare;
}

SettingValue typed(const std::string& name, const std::string& text) {
  static const Key kFlag = *find_key("job.print_config");
  static const Key kNumber = *find_key("optimizer.lr");
  if (const Key* key = typing_key(name)) return parse_text(*key, text);
  if (is_flag(name)) return parse_text(kFlag, text);
  return parse_text(kNumber, text);
}

bool is_truth(const std::string& text) {
  return text == "true" || text == "false" || text == "True" || text == "False";
}

// Returns the entries in the order written, typed by the key they name. Arguments that cannot be
// read add a line each to `errors`. Unknown names are kept, for Merge to report.
std::vector<Entry> parse_overrides(std::span<const std::string> args,
                                   std::vector<std::string>& errors) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg.compare(0, 2, "--") != 0 || arg.size() == 2) {
      errors.push_back(fmt::format("{}: wanted --section.key=value", printable(arg)));
      continue;
    }
    const size_t equals = arg.find('=');
    std::string name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::ranges::replace(name, '-', '_');
    const std::optional<std::string> negated = negated_flag(name);
    Entry entry = {.name = negated.value_or(name),
                   .value = true,
                   .origin = "--" + printable(name),
                   .order = static_cast<int64_t>(i)};
    const bool has_next = i + 1 < args.size() && args[i + 1].compare(0, 2, "--") != 0;
    if (negated) {
      entry.value = false;
      if (equals != std::string::npos) {
        errors.push_back(
            fmt::format("--{}: takes no value; write --{}=true|false", name, *negated));
        continue;
      }
    } else if (equals != std::string::npos) {
      entry.value = typed(name, arg.substr(equals + 1));
    } else if (is_flag(name)) {
      if (has_next && is_truth(args[i + 1])) entry.value = typed(name, args[++i]);
    } else if (has_next) {
      entry.value = typed(name, args[++i]);
    } else if (find_key(name) != nullptr || find_accepted(name) != nullptr) {
      errors.push_back(fmt::format("--{}: wanted a value", name));
      continue;
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool is_section(const std::string& name) {
  for (const Key& key : all_keys()) {
    if (key.name.substr(0, name.size() + 1) == name + ".") return true;
  }
  for (const AcceptedName& key : accepted_names()) {
    if (key.name.substr(0, name.size() + 1) == name + ".") return true;
  }
  return false;
}

constexpr int kMostIncludes = 64;

// The file that is read, after those by which it is included, and the number of all included.
struct OpenFiles {
  std::vector<std::filesystem::path> paths;
  int num_included = 0;
};

void add_toml(Merge& merge, std::string_view text, const std::string& name, OpenFiles& files);

std::string read_local(const std::string& path) {
  const std::string scheme = why_not_local(path);
  TOK_REQUIRE(scheme.empty(), "configuration file: {}", scheme);
  return read_file(path, kSmallFileBytes);
}

// Adds the files that an entry `include` names, relative to the file that it is in, in their order.
void add_included(Merge& merge, const Entry& entry, Source source, OpenFiles& files) {
  Strings names;
  if (const auto* one = std::get_if<std::string>(&entry.value)) names = {*one};
  if (const auto* list = std::get_if<Strings>(&entry.value)) names = *list;
  if (files.paths.empty()) {
    merge.error(entry, source, "text that is not a file includes nothing");
  } else if (names.empty()) {
    merge.error(
        entry, source,
        fmt::format("wanted a path or a list of paths, got {}", value_description(entry.value)));
  } else {
    for (const std::string& name : names) {
      const std::filesystem::path path = files.paths.back().parent_path() / name;
      std::error_code code;
      const bool is_open = std::ranges::any_of(files.paths, [&](const auto& file) {
        return std::filesystem::equivalent(file, path, code);
      });
      TOK_REQUIRE(!is_open, "{}: include: {} includes itself", entry.origin, path.string());
      TOK_REQUIRE(++files.num_included <= kMostIncludes, "{}: include: more than {} files",
                  entry.origin, kMostIncludes);
      const std::string text = read_local(path.string());
      files.paths.push_back(path);
      add_toml(merge, text, path.string(), files);
      files.paths.pop_back();
    }
  }
}

void add_toml(Merge& merge, std::string_view text, const std::string& name, OpenFiles& files) {
  const Source source = files.paths.size() > 1 ? Source::kIncluded : Source::kFile;
  const TomlEntries toml = read_toml(text, name);
  for (const Entry& entry : toml.entries) {
    if (entry.name == "include") add_included(merge, entry, source, files);
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
                       OpenFiles files, const std::vector<Entry>& overrides,
                       std::vector<std::string> errors) {
  Merge merge;
  if (text) add_toml(merge, *text, name, files);
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
  OpenFiles files;
  if (path) {
    text = read_local(*path);
    files.paths.emplace_back(*path);
  }
  LoadedConfig loaded =
      merge_all(text, path.value_or(""), std::move(files), entries, std::move(errors));
  if (path) loaded.config.job.config_file = path;
  return loaded;
}

}  // namespace tokamak
