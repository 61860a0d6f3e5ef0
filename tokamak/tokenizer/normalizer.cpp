#include "tokamak/tokenizer/normalizer.h"

#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

struct Free {
  void operator()(utf8proc_uint8_t* p) const { std::free(p); }
};

// Appends valid UTF-8 in the form.
void append_in_form(std::string_view text, UnicodeForm form, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* raw = nullptr;
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const auto made = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), size, &raw,
                                 options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(raw);
  TOK_CHECK(made >= 0, "utf8proc: {}", utf8proc_errmsg(made));
  out.append(reinterpret_cast<const char*>(raw), static_cast<size_t>(made));
}

// Returns the length of the ASCII characters that begin `text`.
size_t ascii_prefix(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && static_cast<uint8_t>(text[n]) < 0x80) ++n;
  return n;
}

std::string_view stripped(std::string_view text, const StripStep& step) {
  const uint8_t* flags = unicode_flags();
  const auto is_space = [&](size_t at) {
    return (flags[decode_utf8(text.data() + at, text.data() + text.size()).value] & kSpace) != 0;
  };
  while (step.left && !text.empty() && is_space(0))
    text.remove_prefix(decode_utf8(text.data(), text.data() + text.size()).bytes);
  while (step.right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U) --at;
    if (!is_space(at)) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out.push_back(c);
  }
  return out;
}

std::string with_matches_replaced(std::string_view text, const ReplaceMatchesStep& step) {
  std::string out;
  RegexSplitter::Match match;
  size_t done = 0;
  while (step.pattern.next(text, match)) {
    out.append(text.substr(done, match.begin - done)).append(step.to);
    done = match.end;
  }
  return out.append(text.substr(done));
}

// Calls on_char(code, bytes) for each character; bytes that are not UTF-8 have the code
// kInvalidCodePoint.
template <class OnChar>
void for_each_char(std::string_view text, OnChar&& on_char) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint code = decode_utf8(text.data() + at, text.data() + text.size());
    on_char(code.value, text.substr(at, code.bytes));
    at += code.bytes;
  }
}

std::string in_lowercase(std::string_view text) {
  constexpr uint32_t kCapitalDottedI = 0x130;  // the one letter that becomes two characters
  std::string out;
  for_each_char(text, [&](uint32_t code, std::string_view bytes) {
    if (code == kCapitalDottedI) {
      out += "i\u0307";
    } else if (code == kInvalidCodePoint) {
      out += bytes;
    } else {
      append_utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                  out);
    }
  });
  return out;
}

std::string without_marks(std::string_view text) {
  std::string out;
  for_each_char(text, [&](uint32_t code, std::string_view bytes) {
    const auto category = code == kInvalidCodePoint
                              ? UTF8PROC_CATEGORY_CN
                              : utf8proc_category(static_cast<utf8proc_int32_t>(code));
    if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC &&
        category != UTF8PROC_CATEGORY_ME)
      out += bytes;
  });
  return out;
}

struct Apply {
  std::string_view text;

  std::string operator()(UnicodeForm form) const { return to_unicode_form(text, form); }

  std::string operator()(const PrependStep& step) const {
    return text.empty() ? std::string() : step.prefix + std::string(text);
  }

  std::string operator()(const ReplaceStep& step) const {
    return replace_all(text, step.from, step.to);
  }

  std::string operator()(const ReplaceMatchesStep& step) const {
    return with_matches_replaced(text, step);
  }

  std::string operator()(const StripStep& step) const { return std::string(stripped(text, step)); }

  std::string operator()(const SqueezeSpacesStep&) const { return squeezed(text); }

  std::string operator()(const LowercaseStep&) const { return in_lowercase(text); }

  std::string operator()(const StripAccentsStep&) const { return without_marks(text); }

  std::string operator()(const TrimEndStep& step) const {
    std::string_view rest = text;
    while (rest.ends_with(step.mark)) rest.remove_suffix(step.mark.size());
    return std::string(rest);
  }
};

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  // A character may compose with the one before it, so the last ASCII one is left to utf8proc.
  const size_t ascii = ascii_prefix(text);
  if (ascii == text.size()) return std::string(text);
  std::string out;
  out.reserve(text.size() + 16);
  size_t begin = ascii > 0 ? ascii - 1 : 0;
  out.append(text.substr(0, begin));
  const char* end = text.data() + text.size();
  size_t at = begin;
  while (at < text.size()) {
    const CodePoint code = decode_utf8(text.data() + at, end);
    if (code.value == kInvalidCodePoint) {
      append_in_form(text.substr(begin, at - begin), form, out);
      out.push_back(text[at]);
      begin = at + 1;
    }
    at += code.bytes;
  }
  append_in_form(text.substr(begin), form, out);
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const NormalizerStep& step : steps_) out = std::visit(Apply{out}, step);
  return out;
}

}  // namespace tokamak
