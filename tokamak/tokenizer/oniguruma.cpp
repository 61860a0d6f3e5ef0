#include "tokamak/tokenizer/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <cctype>

#include <pcre2.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// White_Space: PCRE2's own \s also has U+180E.
constexpr std::string_view kSpaces =
    R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Outside of a class \w also has the other numbers of Latin-1.
constexpr std::string_view kLatin1Numbers = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

constexpr std::string_view kHexDigits = "0-9A-Fa-f";

std::string class_of(char letter, bool in_class) {
  if (letter == 's' || letter == 'S') return std::string(kSpaces);
  if (letter == 'w' || letter == 'W')
    return fmt::format("{}{}", kWordCharacters, in_class ? std::string_view() : kLatin1Numbers);
  return letter == 'h' || letter == 'H' ? std::string(kHexDigits) : std::string();
}

std::string word_boundary(bool inverted) {
  return fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", class_of('w', false),
                     inverted ? "=" : "!", inverted ? "!" : "=");
}

bool compiles(std::string_view pattern) {
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view what) : rest_(pattern), what_(what) {}

  std::string run() {
    while (!rest_.empty()) {
      if (rest_.size() >= 2 && rest_[0] == '\\') {
        escape();
      } else if (in_class_) {
        inside_class();
      } else if (rest_[0] == '[') {
        open_class();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  void copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  void replace(size_t count, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(count);
  }

  // A `]` right after the bracket stands for itself.
  void open_class() {
    in_class_ = true;
    copy(1);
    if (rest_.starts_with('^')) copy(1);
    if (rest_.starts_with(']')) copy(1);
  }

  void inside_class() {
    if (rest_.starts_with("[:")) {
      copy(std::min(rest_.find(":]"), rest_.size() - 2) + 2);
      return;
    }
    TOK_REQUIRE(rest_[0] != '[' && !rest_.starts_with("&&"),
                "{}: a class within a class and an intersection of classes (&&) are not supported",
                what_);
    if (rest_[0] == ']') in_class_ = false;
    copy(1);
  }

  void escape() {
    const char letter = rest_[1];
    const std::string members = class_of(letter, in_class_);
    if (!members.empty() && std::islower(static_cast<uint8_t>(letter)) != 0) {
      replace(2, in_class_ ? members : fmt::format("[{}]", members));
    } else if (!members.empty() && !in_class_) {
      replace(2, fmt::format("[^{}]", members));
    } else if ((letter == 'b' || letter == 'B') && !in_class_) {
      replace(2, word_boundary(letter == 'B'));
    } else if (letter == 'u' && rest_.size() >= 6) {
      replace(6, fmt::format("\\x{{{}}}", rest_.substr(2, 4)));
    } else if ((letter == 'p' || letter == 'P') && rest_.substr(2).starts_with('{')) {
      property();
    } else {
      copy(2);
    }
  }

  // A script is the Script of a character, not its Script_Extensions as in PCRE2.
  void property() {
    const size_t size = std::min(rest_.find('}'), rest_.size() - 1) + 1;
    const size_t name = rest_.substr(3).starts_with('^') ? 4 : 3;
    const std::string as_script =
        fmt::format("{}sc:{}", rest_.substr(0, name), rest_.substr(name, size - name));
    if (compiles(as_script))
      replace(size, as_script);
    else
      copy(size);
  }

  std::string_view rest_;
  std::string_view what_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

std::string from_oniguruma(std::string_view pattern, std::string_view what) {
  return Translation(pattern, what).run();
}

}  // namespace tokamak
