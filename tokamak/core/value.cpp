#include "tokamak/core/value.h"

#include <cmath>

#include <fmt/format.h>

namespace tokamak {

namespace {

// Long or unprintable text must not break "one line per error".
std::string to_quoted(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxShown ? "...\"" : "\"");
}

template <class T, class Text>
std::string joined(const std::vector<T>& items, const Text& text) {
  std::string out = "[";
  for (size_t i = 0; i < items.size(); ++i) out += (i > 0 ? ", " : "") + text(items[i]);
  return out + "]";
}

struct TextOf {
  std::string operator()(std::monostate) const { return "none"; }

  std::string operator()(bool v) const { return v ? "true" : "false"; }

  std::string operator()(int64_t v) const { return fmt::format("{}", v); }

  std::string operator()(double v) const { return double_text(v); }

  std::string operator()(const std::string& v) const { return to_quoted(v); }

  std::string operator()(const std::vector<std::string>& v) const { return joined(v, to_quoted); }

  std::string operator()(const std::vector<std::vector<std::string>>& v) const {
    return joined(v, [this](const std::vector<std::string>& row) { return (*this)(row); });
  }

  std::string operator()(const OddValue& v) const { return v.what; }
};

}  // namespace

std::string double_text(double value) {
  const std::string text = fmt::format("{}", value);
  const bool looks_integral = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_integral ? text + ".0" : text;
}

std::string value_text(const SettingValue& value) {
  return std::visit(TextOf{}, value);
}

std::string value_description(const SettingValue& value) {
  static constexpr const char* kKinds[] = {
      "", "the boolean ", "the integer ", "the float ", "the string ", "the list ", "the list ",
      ""};
  return kKinds[value.index()] + value_text(value);
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> items;
  if (text.find_first_not_of(" \t") == std::string_view::npos) return items;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string_view item = text.substr(begin, end - begin);
    const size_t first = item.find_first_not_of(" \t");
    const size_t last = item.find_last_not_of(" \t");
    items.emplace_back(first == std::string_view::npos ? std::string_view()
                                                       : item.substr(first, last - first + 1));
    begin = end + 1;
  }
  return items;
}

}  // namespace tokamak
