#include "tokamak/config/toml_reader.h"

#include <algorithm>

#include "tokamak/core/error.h"

// toml++ 3.3 asserts on some malformed text ("[" and a line break), and in release builds takes the
// assertion for granted. Here, and only in this header-only copy, it throws in every build.
namespace tokamak::detail {
struct TomlAssertion {};

[[noreturn]] static void throw_toml_assertion() {
  throw TomlAssertion();
}
}  // namespace tokamak::detail

#undef NDEBUG
#define TOML_ASSERT(holds) \
  ((holds) ? static_cast<void>(0) : ::tokamak::detail::throw_toml_assertion())
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace tokamak {

namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxDots = 8;
constexpr int kMaxBrackets = 16;

// toml++ recurses over nested values and over dotted keys, and frees them recursively: depth is
// bounded before it sees the text. std::vector<std::string> and comments are skipped as TOML reads
// them.
class DepthScanner {
 public:
  DepthScanner(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void scan() {
    while (at_ < text_.size()) step();
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return skip_string(c);
    ++at_;
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '\n') {
      ++line_;
      dots_ = 0;
    } else if (c == '.') {
      require(++dots_ <= kMaxDots);
    } else if (c == '[' || c == '{') {
      dots_ = 0;
      require(++brackets_ <= kMaxBrackets);
    } else if (c == ']' || c == '}') {
      dots_ = 0;
      if (brackets_ > 0) --brackets_;
    } else if (c == '=' || c == ',') {
      dots_ = 0;
    }
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool is_long = text_.compare(at_, 3, triple) == 0;
    at_ += is_long ? 3 : 1;
    while (at_ < text_.size()) {
      if (is_long && text_.compare(at_, 3, triple) == 0) {
        at_ += 3;
        // Up to two more quotes belong to the text.
        for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
        return;
      }
      const char c = text_[at_++];
      if (c == '\\' && quote == '"' && at_ < text_.size() && text_[at_] != '\n') ++at_;
      if (c == '\n') ++line_;
      if (!is_long && (c == quote || c == '\n')) return;
    }
  }

  void require(bool is_shallow) const {
    TOK_REQUIRE(is_shallow,
                "{}:{}: nested deeper than a configuration can be (wanted at most {} dots in a key "
                "and {} open brackets)",
                name_, line_, kMaxDots, kMaxBrackets);
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  size_t line_ = 1;
  int dots_ = 0;
  int brackets_ = 0;
};

bool all_strings(const toml::array& array) {
  for (const toml::node& item : array) {
    if (!item.is_string()) return false;
  }
  return true;
}

std::vector<std::string> strings_of(const toml::array& array) {
  std::vector<std::string> out;
  for (const toml::node& item : array) out.push_back(item.as_string()->get());
  return out;
}

Value list_value(const toml::array& array) {
  if (all_strings(array)) return strings_of(array);
  std::vector<std::vector<std::string>> rows;
  for (const toml::node& item : array) {
    if (!item.is_array() || !all_strings(*item.as_array())) {
      return OddValue{"a list whose items are not all strings"};
    }
    rows.push_back(strings_of(*item.as_array()));
  }
  return rows;
}

Value to_value(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_array()) return list_value(*v);
  return OddValue{"a date or time"};
}

class Flattener {
 public:
  Flattener(const std::string& name, TomlEntries& out) : name_(name), out_(out) {}

  void walk(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string full = prefix + std::string(key.str());
      const std::string origin = fmt::format("{}:{}", name_, key.source().begin.line);
      const toml::table* inner = node.as_table();
      if (inner == nullptr) {
        out_.entries.push_back({.name = full,
                                .value = to_value(node),
                                .origin = origin,
                                .order = key.source().begin.line});
      } else if (inner->empty()) {
        out_.empty_tables.push_back(
            {.name = full, .value = {}, .origin = origin, .order = key.source().begin.line});
      } else {
        walk(*inner, full + ".");
      }
    }
  }

 private:
  const std::string& name_;
  TomlEntries& out_;
};

bool asserts(std::string_view text) {
  try {
    static_cast<void>(toml::parse(text));
  } catch (const detail::TomlAssertion&) {
    return true;
  } catch (const toml::parse_error&) {
  }
  return false;
}

// An assertion has no line of its own: the fewest lines that still lead to it end there.
size_t assertion_line(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n') ends.push_back(at + 1);
  }
  const auto end = std::partition_point(
      ends.begin(), ends.end(), [&](size_t size) { return !asserts(text.substr(0, size)); });
  return static_cast<size_t>(end - ends.begin()) + 1;
}

}  // namespace

TomlEntries read_toml(std::string_view text, const std::string& name) {
  TOK_REQUIRE(text.size() <= kMaxBytes,
              "{}: wanted a configuration of at most {} bytes, got {} bytes", name, kMaxBytes,
              text.size());
  DepthScanner(text, name).scan();
  TomlEntries out;
  try {
    const toml::table table = toml::parse(text);
    Flattener(name, out).walk(table, "");
    std::stable_sort(out.entries.begin(), out.entries.end(),
                     [](const Entry& a, const Entry& b) { return a.order < b.order; });
  } catch (const detail::TomlAssertion&) {
    fail("{}:{}: not valid TOML: a key, value or table header is cut short", name,
         assertion_line(text));
  } catch (const toml::parse_error& error) {
    std::string what;
    for (const char c : error.description()) what += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    fail("{}:{}: not valid TOML: {}", name, error.source().begin.line, what);
  }
  return out;
}

}  // namespace tokamak
