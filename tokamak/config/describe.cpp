#include "tokamak/config/describe.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tokamak/config/accepted.h"
#include "tokamak/config/key_table.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {

namespace {

struct ToJson {
  OrderedJson operator()(std::monostate) const { return nullptr; }

  OrderedJson operator()(const OddValue& v) const { return v.what; }

  template <class T>
  OrderedJson operator()(const T& v) const {
    return v;
  }
};

OrderedJson nested_json(const Config& config) {
  OrderedJson root = OrderedJson::object();
  for (const Key& key : all_keys()) {
    OrderedJson* at = &root;
    for (const std::string& part : split_list(key.name, '.')) at = &(*at)[part];
    *at = std::visit(ToJson{}, get_value(config, key));
  }
  return root;
}

// TOML writes values as JSON does, except for DEL.
std::string toml_text(std::string_view key, const OrderedJson& value) {
  if (value.is_null()) return "\"none\"";
  std::string text;
  try {
    text = value.dump();
  } catch (const OrderedJson::type_error&) {
    fail("{}: a TOML file has UTF-8: wanted such a text", key);
  }
  constexpr char kDelete = 0x7f;
  for (size_t at = text.find(kDelete); at != std::string::npos; at = text.find(kDelete, at))
    text.replace(at, 1, "\\u007F");
  return text;
}

// Keys that name places or people, or that only change what is printed.
constexpr std::array kOutsideDigest = {
    "job.config_file",  "job.dump_folder",      "job.description",
    "job.print_config", "job.save_config_file", "metrics.disable_color_printing",
    "metrics.command",  "metrics.tracker",      "metrics.enable_wandb"};

std::string values_text(const Key& key) {
  const std::vector<std::string> names = allowed_list(key);
  if (!names.empty()) return fmt::format("{}", fmt::join(names, ", "));
  return key.allowed.empty() ? "any" : std::string(key.allowed);
}

std::string help_of(const Key& key) {
  return fmt::format("{}\n  {}\n  type: {}{}\n  default: {}\n  values: {}\n", key.name, key.help,
                     type_name(key), is_nullable(key) ? " or none" : "", default_text(key),
                     values_text(key));
}

std::string help_of(const AcceptedName& row) {
  switch (row.fate) {
    case Fate::kRename:
      return fmt::format("{}\n  now {}\n", row.name, row.means);
    case Fate::kInvert:
      return fmt::format("{}\n  now not {}\n", row.name, row.means);
    case Fate::kConvert:
      return fmt::format("{}\n  now model.converters = [\"{}\"]\n", row.name, row.means);
    case Fate::kOnly:
      return fmt::format("{}\n  only {} is accepted: {}\n", row.name, row.means, row.note);
    case Fate::kRefuse:
      return fmt::format("{}\n  removed: {}\n", row.name, row.note);
    case Fate::kDrop:
      return fmt::format("{}\n  accepted without effect: {}\n", row.name, row.note);
  }
  return "";
}

OrderedJson schema_type(std::string_view type) {
  if (type == "bool") return "boolean";
  if (type == "int") return "integer";
  if (type == "float") return "number";
  return "string";
}

// A file may have one text where the key is a list, and an integer for some texts.
OrderedJson schema_of(const Key& key) {
  const std::string_view type = type_name(key);
  OrderedJson schema = {{"description", key.help}, {"default", default_text(key)}};
  OrderedJson one;
  if (type.starts_with("list")) {
    one["type"] = {"array", "string"};
  } else if (type == "string") {
    one["type"] = {"string", "integer"};
  } else {
    one["type"] = schema_type(type);
  }
  double bound = 0.0;
  if (key.allowed.starts_with(">=") && !key.allowed.ends_with("-1")) {
    std::from_chars(key.allowed.begin() + 2, key.allowed.end(), bound);
    one["minimum"] = bound;
  }
  if (const auto names = allowed_list(key); !names.empty() && !key.allowed.starts_with('~'))
    one = {{"enum", names}};
  if (is_nullable(key)) {
    schema["anyOf"] = {one, {{"const", "none"}}};
  } else {
    schema.update(one);
  }
  return schema;
}

// Returns the properties of the section that holds a key, made where it is not there.
OrderedJson& section_of(OrderedJson& root, std::string_view name) {
  OrderedJson* at = &root;
  const std::vector<std::string> parts = split_list(name, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    at = &(*at)["properties"][parts[i]];
    (*at)["type"] = "object";
    (*at)["additionalProperties"] = false;
  }
  return (*at)["properties"][parts.back()];
}

std::string line_of(const Key& key) {
  return fmt::format("  --{}={}\n      {}\n", key.name, default_text(key), key.help);
}

std::string all_keys_help() {
  std::string text;
  for (const Key& key : all_keys()) text += line_of(key);
  return text;
}

}  // namespace

std::string config_json(const Config& config) {
  using Handler = OrderedJson::error_handler_t;
  return nested_json(config).dump(2, ' ', false, Handler::replace) + "\n";
}

std::string config_toml(const Config& config) {
  std::string text;
  std::string section;
  for (const Key& key : all_keys()) {
    const OrderedJson value = std::visit(ToJson{}, get_value(config, key));
    if (key.name == "job.config_file" || value == std::visit(ToJson{}, get_value(Config(), key)))
      continue;
    const size_t dot = key.name.rfind('.');
    if (section != key.name.substr(0, dot)) {
      section = key.name.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), toml_text(key.name, value));
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> key_values(const Config& config) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Key& key : all_keys())
    values.emplace_back(key.name, value_text(get_value(config, key)));
  return values;
}

std::string config_digest(const Config& config) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;
  };
  for (const Key& key : all_keys()) {
    if (std::ranges::find(kOutsideDigest, key.name) != kOutsideDigest.end()) {
      continue;
    }
    const OrderedJson json = std::visit(ToJson{}, get_value(config, key));
    mix(key.name);
    mix(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  }
  return fmt::format("{:016x}", hash);
}

std::string key_help(std::string_view name) {
  std::string full(name);
  std::ranges::replace(full, '-', '_');
  if (full == "all") return all_keys_help();
  if (const Key* key = find_key(full)) return help_of(*key);
  if (const AcceptedName* key = find_accepted(full)) return help_of(*key);
  std::string section;
  for (const Key& key : all_keys()) {
    if (key.name.substr(0, full.size() + 1) == full + ".") section += line_of(key);
  }
  for (const AcceptedName& row : accepted_names()) {
    if (row.name.substr(0, full.size() + 1) == full + ".") section += help_of(row);
  }
  TOK_REQUIRE(!section.empty(), "{}: no such key or section{}", printable(full),
              unknown_key_hint(full));
  return fmt::format("[{}]\n{}", full, section);
}

std::string config_schema() {
  OrderedJson root = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                      {"title", "Configuration of Tokamak"},
                      {"type", "object"},
                      {"additionalProperties", false}};
  root["properties"]["include"] = {{"description", "Files whose keys apply before this file's."},
                                   {"type", {"array", "string"}}};
  for (const Key& key : all_keys()) section_of(root, key.name) = schema_of(key);
  for (const AcceptedName& row : accepted_names()) {
    std::string text = help_of(row);
    text.erase(0, text.find('\n') + 1);
    section_of(root, row.name) = {{"description", text.substr(2, text.size() - 3)},
                                  {"deprecated", true}};
  }
  return root.dump(2) + "\n";
}

std::vector<std::string> sections() {
  std::vector<std::string> names;
  for (const Key& key : all_keys()) {
    std::string section(key.name.substr(0, key.name.find('.')));
    if (names.empty() || names.back() != section) names.push_back(std::move(section));
  }
  return names;
}

}  // namespace tokamak
