#include "tokamak/data/json_text.h"

#include <algorithm>
#include <charconv>

#include <simdjson.h>

#include "tokamak/core/error.h"

namespace tokamak {

const size_t JsonTextParser::kPadding = simdjson::SIMDJSON_PADDING;

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Returns the code unit of an escape \uHHHH at the front, or -1.
int32_t escaped_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return -1;
  int32_t unit = 0;
  const auto [end, code] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
  return code == std::errc() && end == text.data() + 6 ? unit : -1;
}

bool is_high_surrogate(int32_t unit) {
  return unit >= 0xD800 && unit < 0xDC00;
}

bool is_low_surrogate(int32_t unit) {
  return unit >= 0xDC00 && unit < 0xE000;
}

// Puts U+FFFD in place of each escaped surrogate that is not one of a pair.
std::string without_lone_surrogates(std::string_view line) {
  std::string out;
  while (!line.empty()) {
    const int32_t unit = escaped_unit(line);
    size_t size = line[0] == '\\' ? std::min<size_t>(unit < 0 ? 2 : 6, line.size()) : 1;
    if (is_high_surrogate(unit) && is_low_surrogate(escaped_unit(line.substr(6)))) size = 12;
    const bool is_lone = size == 6 && (is_high_surrogate(unit) || is_low_surrogate(unit));
    out += is_lone ? std::string_view("\\uFFFD") : line.substr(0, size);
    line.remove_prefix(size);
  }
  return out;
}

}  // namespace

class JsonTextParser::Impl {
 public:
  simdjson::error_code parse(std::string_view line, simdjson::dom::element& document) {
    const auto error = parser_.parse(line.data(), line.size(), false).get(document);
    if (error != simdjson::STRING_ERROR) return error;
    mended_ = without_lone_surrogates(line);
    mended_.reserve(mended_.size() + kPadding);
    return parser_.parse(mended_.data(), mended_.size(), false).get(document);
  }

 private:
  simdjson::dom::parser parser_;
  std::string mended_;
};

JsonTextParser::JsonTextParser() : impl_(std::make_unique<Impl>()) {}

JsonTextParser::~JsonTextParser() = default;

std::string_view JsonTextParser::text_of(std::string_view line, const std::string& where) {
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  simdjson::dom::element document;
  const auto error = impl_->parse(line, document);
  TOK_REQUIRE(error == simdjson::SUCCESS, "{}: wanted one JSON object a line, got invalid JSON: {}",
              where, simdjson::error_message(error));
  simdjson::dom::object object;
  TOK_REQUIRE(document.get(object) == simdjson::SUCCESS,
              "{}: wanted a JSON object with a \"text\" field, got another value", where);
  simdjson::dom::element field;
  TOK_REQUIRE(object.at_key("text").get(field) == simdjson::SUCCESS, "{}: no \"text\" field",
              where);
  std::string_view text;
  TOK_REQUIRE(field.get(text) == simdjson::SUCCESS,
              "{}: wanted a string in the \"text\" field, got another value", where);
  return text;
}

}  // namespace tokamak
