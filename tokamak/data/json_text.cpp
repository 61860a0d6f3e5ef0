#include "tokamak/data/json_text.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {

const size_t JsonTextParser::kPadding = simdjson::SIMDJSON_PADDING;

namespace {

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

// Returns the character at the front, or U+FFFD for an escaped surrogate that is not one of a pair,
// and sets how many bytes it stands for.
std::string_view mended_character(std::string_view text, size_t& size) {
  const int32_t unit = escaped_unit(text);
  size = unit >= 0 ? 6 : text[0] == '\\' ? 2 : 1;
  if (is_high_surrogate(unit) && is_low_surrogate(escaped_unit(text.substr(6)))) size = 12;
  const bool is_lone = size == 6 && (is_high_surrogate(unit) || is_low_surrogate(unit));
  return is_lone ? std::string_view("\\uFFFD") : text.substr(0, size);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_in_number_or_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
         c == '.';
}

// A number by JSON's grammar.
bool is_json_number(std::string_view word) {
  size_t at = 0;
  const auto take = [&](char c) { return at < word.size() && word[at] == c && ++at > 0; };
  const auto take_digits = [&] {
    const size_t from = at;
    while (at < word.size() && is_digit(word[at])) ++at;
    return at > from;
  };
  take('-');
  if (!take('0') && !take_digits()) return false;
  if (take('.') && !take_digits()) return false;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!take_digits()) return false;
  }
  return at == word.size();
}

// Python's json writes numbers that simdjson refuses. No number is read, so all become 0.
std::string_view mended_word(std::string_view word) {
  const std::string_view size = word.substr(word.starts_with('-') ? 1 : 0);
  const bool is_special = size == "NaN" || size == "Infinity" || size == "Inf";
  return is_special || is_json_number(word) ? std::string_view("0") : word;
}

// Puts what simdjson takes in place of what it refuses and others write.
std::string mended(std::string_view text) {
  std::string out;
  bool in_string = false;
  while (!text.empty()) {
    size_t size = 1;
    if (in_string) {
      out += mended_character(text, size);
    } else {
      while (is_in_number_or_name(text[0]) && size < text.size() &&
             is_in_number_or_name(text[size]))
        ++size;
      out += mended_word(text.substr(0, size));
    }
    in_string = in_string != (text[0] == '"');
    text.remove_prefix(std::min(size, text.size()));
  }
  return out;
}

std::string names_in(const simdjson::dom::object& object) {
  constexpr size_t kMostNames = 8;
  std::string names;
  size_t count = 0;
  for (const auto& [name, value] : object) {
    if (++count <= kMostNames) names += (count > 1 ? ", " : "") + printable(name.substr(0, 40));
  }
  return count > kMostNames ? names + ", ..." : names;
}

std::string_view kind_of(simdjson::dom::element value) {
  if (value.is_null()) return "null";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.is_string() ? "a string" : value.is_bool() ? "true or false" : "a number";
}

}  // namespace

size_t JsonEnd::add(std::string_view part) {
  for (size_t at = 0; at < part.size(); ++at) {
    const char c = part[at];
    const bool is_outside =
        !in_string_ && depth_ == 0 && (c == ',' || c == '\n' || c == ']' || c == '}');
    if (is_outside || (in_string_ && c == '\n')) {
      found_ = true;
      return at;
    }
    if (in_string_) {
      in_string_ = c != '"' || is_escaped_;
      is_escaped_ = c == '\\' && !is_escaped_;
      found_ = !in_string_ && depth_ == 0;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      found_ = --depth_ == 0;
    }
    if (found_) return at + 1;
  }
  return part.size();
}

class JsonTextParser::Impl {
 public:
  explicit Impl(std::string column) : column_(std::move(column)) {}

  bool parse(std::string_view value) {
    error_ = parser_.parse(value.data(), value.size(), false).get(document_);
    if (error_ == simdjson::SUCCESS || error_ == simdjson::UTF8_ERROR) return !error_;
    mended_ = mended(value);
    if (mended_ == value) return false;
    mended_.reserve(mended_.size() + kPadding);
    error_ = parser_.parse(mended_.data(), mended_.size(), false).get(document_);
    return error_ == simdjson::SUCCESS;
  }

  std::string_view text(const std::string& where, bool allow_string) {
    TOK_REQUIRE(error_ == simdjson::SUCCESS,
                "{}: wanted one JSON object per line, got invalid JSON: {}", where,
                simdjson::error_message(error_));
    std::string_view text;
    if (allow_string && document_.get(text) == simdjson::SUCCESS) return text;
    simdjson::dom::object object;
    TOK_REQUIRE(document_.get(object) == simdjson::SUCCESS,
                "{}: wanted a JSON object with a \"{}\" field, got {}", where, column_,
                kind_of(document_));
    texts_.clear();
    TOK_REQUIRE(add(object, column_, where),
                "{}: no \"{}\" field, only {}; text_column names the one to read", where, column_,
                names_in(object));
    if (texts_.empty()) return {};
    if (texts_.size() == 1) return texts_[0];
    joined_ = texts_[0];
    for (size_t i = 1; i < texts_.size(); ++i) (joined_ += '\n') += texts_[i];
    return joined_;
  }

 private:
  // Adds the strings that `column` names in the object; returns whether it has that member.
  bool add(const simdjson::dom::object& object, std::string_view column, const std::string& where,
           bool is_item = false) {
    int count = 0;
    simdjson::dom::element field;
    for (const auto& [name, value] : object) {
      if (name != column) continue;
      ++count;
      field = value;
    }
    TOK_REQUIRE(count < 2, "{}: wanted one \"{}\" field, got {}", where, column, count);
    if (count == 1) {
      add_strings(field, where, is_item);
      return true;
    }
    for (size_t dot = column.find('.'); dot != std::string_view::npos;
         dot = column.find('.', dot + 1)) {
      for (const auto& [name, value] : object)
        if (name == column.substr(0, dot) &&
            add_members(value, column.substr(dot + 1), where, is_item))
          return true;
    }
    return false;
  }

  bool add_members(simdjson::dom::element value, std::string_view column, const std::string& where,
                   bool is_item) {
    simdjson::dom::object object;
    if (value.get(object) == simdjson::SUCCESS) return add(object, column, where, is_item);
    simdjson::dom::array items;
    if (value.get(items) != simdjson::SUCCESS) return false;
    bool found = items.begin() == items.end();
    for (const simdjson::dom::element item : items)
      found = add_members(item, column, where, true) || found;
    return found;
  }

  void add_strings(simdjson::dom::element field, const std::string& where, bool is_item) {
    std::string_view text;
    if (field.get(text) == simdjson::SUCCESS) return texts_.push_back(text);
    if (is_item && field.is_null()) return;
    simdjson::dom::array items;
    TOK_REQUIRE(field.get(items) == simdjson::SUCCESS,
                "{}: wanted a string in the \"{}\" field, got {}", where, column_, kind_of(field));
    for (const simdjson::dom::element item : items) add_strings(item, where, true);
  }

  std::string column_;
  simdjson::dom::parser parser_;
  simdjson::dom::element document_;
  simdjson::error_code error_ = simdjson::EMPTY;
  std::string mended_;
  std::vector<std::string_view> texts_;
  std::string joined_;
};

JsonTextParser::JsonTextParser(std::string column)
    : impl_(std::make_unique<Impl>(std::move(column))) {}

JsonTextParser::~JsonTextParser() = default;

bool JsonTextParser::parse(std::string_view value) {
  return impl_->parse(value);
}

std::string_view JsonTextParser::text(const std::string& where, bool allow_string) {
  return impl_->text(where, allow_string);
}

}  // namespace tokamak
