#include "tokamak/config/overrides.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "tokamak/config/accepted.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/nearest.h"

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

}  // namespace

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
    std::replace(name.begin(), name.end(), '-', '_');
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

}  // namespace tokamak
