// Every key through a TOML file: it takes a value besides its default, the same as by an override.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/config/describe.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/load.h"

namespace tokamak {
namespace {

struct Written {
  std::string toml;
  std::string word;
};

// Returns a value that the key takes and does not have by default.
Written other_value(const Key& key) {
  const std::string_view type = type_name(key);
  const std::string usual = default_text(key);
  if (type == "bool") {
    const std::string value = usual == "true" ? "false" : "true";
    return {value, value};
  }
  if (type == "int" || type == "float") {
    const std::string value = type == "int" ? (usual == "7" ? "8" : "7") : "0.25";
    return {value, value};
  }
  const std::vector<std::string> listed = allowed_list(key);
  std::string text = listed.empty() ? "x" : listed[0];
  for (const std::string& value : listed) {
    if ("\"" + value + "\"" != usual) text = value;
  }
  const std::string quoted = "\"" + text + "\"";
  if (type == "string") return {quoted, text};
  return {type == "list of strings" ? "[" + quoted + "]" : "[[" + quoted + "]]", text};
}

TEST(Keys, AreSetByAFileAsByAnOverride) {
  for (const Key& key : all_keys()) {
    if (key.name == "job.config_file") continue;  // which no file can name
    const Written value = other_value(key);
    const size_t dot = key.name.rfind('.');
    const std::string text = fmt::format("[{}]\n{} = {}\n", key.name.substr(0, dot),
                                         key.name.substr(dot + 1), value.toml);
    const std::vector<std::string> words{fmt::format("--{}={}", key.name, value.word)};
    const LoadedConfig by_file = parse_toml_text(text, "f.toml");
    const LoadedConfig by_word = parse_toml_text("", "f.toml", words);
    if (allowed_list(key).size() != 1) {
      EXPECT_NE(config_json(by_file.config), config_json(Config())) << key.name << ": " << text;
    }
    EXPECT_EQ(config_json(by_file.config), config_json(by_word.config)) << key.name;
    EXPECT_EQ(by_file.notes, by_word.notes) << key.name;
  }
}

}  // namespace
}  // namespace tokamak
