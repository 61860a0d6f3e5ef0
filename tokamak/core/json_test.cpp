#include "tokamak/core/json.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "a.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Json, refuses_bad_input_in_one_line) {
  EXPECT_EQ(error_of("{\"a\": 1, \"a\": 2}"), "a.json: JSON key \"a\" is given twice");
  EXPECT_EQ(error_of("{\"a\": 1,\n\n oops}").substr(0, 15), "a.json: line 3:");
  EXPECT_EQ(error_of(std::string(100'000, '[')), "a.json: JSON nested deeper than 64 levels");
  EXPECT_EQ(error_of("[1e999]"), "a.json: a JSON number is beyond the range of a double");
  EXPECT_EQ(error_of(""), "a.json: not valid JSON: it ends too early (a cut file?)");
  EXPECT_EQ(error_of("{\"a\": [1,"), error_of(""));
  EXPECT_FALSE(error_of("{\"a\": \"\xff\"}").empty());
  EXPECT_EQ(error_of(R"({"a": [{"b": {"c": 1, "c": 2}}]})"),
            "a.json: JSON key \"c\" is given twice");
}

TEST(Json, time_is_linear_in_the_number_of_members) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) {
    text += fmt::format("{}\"{}\": {{\"a\": [{}]}}", i == 0 ? "" : ", ", i, i);
  }
  text += "}";
  EXPECT_EQ(parse_json(text, "a.json").size(), 100'000U);  // hours where it is quadratic
  EXPECT_THROW(parse_ordered_json(text, "a.json"), Error);
}

TEST(Json, members_are_typed) {
  const Json json = parse_json(R"({"n": 3, "s": "x", "big": 18446744073709551615})", "a.json");
  EXPECT_EQ(json_member<int64_t>(json, "n", "a.json"), 3);
  EXPECT_THROW(json_member<int64_t>(json, "s", "a.json"), Error);
  EXPECT_THROW(json_member<int64_t>(json, "big", "a.json"), Error);
  EXPECT_EQ(json_member_or<std::string>(json, "absent", "d", "a.json"), "d");
}

TEST(Json, KeysFromOutsideGiveNoOrderToATerminal) {
  try {
    parse_json(R"({"a\u001b[2J": 1, "a\u001b[2J": 2})", "f");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "f: JSON key \"a\\x1b[2J\" is given twice");
  }
  try {
    json_member<int64_t>(parse_json("{\"a\": \"\x7f\u009b2J\"}", "f"), "a", "f");
    FAIL();
  } catch (const Error& error) {
    for (const char* c = error.what(); *c != '\0'; ++c) EXPECT_TRUE(*c >= 0x20 && *c < 0x7f);
  }
}

}  // namespace
}  // namespace tokamak
