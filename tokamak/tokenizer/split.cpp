#include "tokamak/tokenizer/split.h"

namespace tokamak {

// Under (?i) the long s (U+017F) folds to s. No other letter of the contractions has a third form.
const char* WordSplitter::contraction_end(const char* p, bool any_case) const {
  const auto lower = [&](ptrdiff_t i) -> char {
    if (i >= end_ - p) return 0;
    const char c = p[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (lower(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return lower(2) == 'e' ? p + 3 : p;
    case 'l':
      return lower(2) == 'l' ? p + 3 : p;
    case '\xC5':
      return any_case && lower(2) == '\xBF' ? p + 3 : p;
    default:
      return p;
  }
}

// Matches \s+(?!\S)|\s+, preceded by \s*[\r\n]+ where `newline_ends`.
const char* WordSplitter::space_end(const char* p, bool newline_ends) const {
  const char* last = p;
  const char* after_newline = nullptr;
  const char* q = p;
  while (q < end_) {
    const Char c = at(q);
    if ((c.flags & kSpace) == 0) break;
    if (*q == '\r' || *q == '\n') after_newline = q + 1;
    last = q;
    q += c.bytes;
  }
  if (newline_ends && after_newline != nullptr) return after_newline;
  return q == end_ || last == p ? q : last;
}

const char* WordSplitter::gpt2_end(const char* p) const {
  if (*p == '\'') {
    const char* stop = contraction_end(p, false);
    if (stop != p) return stop;
  }
  const char* body = *p == ' ' && p + 1 < end_ ? p + 1 : p;
  const Char c = at(body);
  if ((c.flags & kLetter) != 0) return skip(body + c.bytes, kLetter, kLetter);
  if ((c.flags & kNumber) != 0) return skip(body + c.bytes, kNumber, kNumber);
  if ((c.flags & kSpace) == 0) return skip_others(body + c.bytes);
  return space_end(p, false);
}

const char* WordSplitter::llama3_end(const char* p) const {
  if (*p == '\'') {
    const char* stop = contraction_end(p, true);
    if (stop != p) return stop;
  }
  const Char first = at(p);
  const char* second = p + first.bytes;
  if ((first.flags & kLetter) != 0) return skip(second, kLetter, kLetter);
  if ((first.flags & kNumber) != 0) {
    for (int digits = 1; digits < max_digits_ && second < end_; ++digits) {
      const Char c = at(second);
      if ((c.flags & kNumber) == 0) break;
      second += c.bytes;
    }
    return second;
  }
  const Char next = second < end_ ? at(second) : Char{kSpace, 0};
  if ((next.flags & kLetter) != 0 && *p != '\r' && *p != '\n') {
    return skip(second + next.bytes, kLetter, kLetter);
  }
  if ((first.flags & kSpace) == 0) return skip_newlines(skip_others(second));
  if (*p == ' ' && (next.flags & (kLetter | kNumber | kSpace)) == 0) {
    return skip_newlines(skip_others(second));
  }
  return space_end(p, true);
}

}  // namespace tokamak
