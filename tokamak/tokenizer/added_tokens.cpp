#include "tokamak/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "tokamak/tokenizer/unicode.h"

namespace tokamak {
namespace {

/// Returns the start of the last character of `text`. REQUIRES: `text` is not empty.
size_t last_char(std::string_view text) {
  const size_t lowest = text.size() > 4 ? text.size() - 4 : 0;
  for (size_t at = text.size(); at-- > lowest;) {
    const CodePoint code = decode_utf8(text.data() + at, text.data() + text.size());
    if (code.value != kInvalidCodePoint && at + code.bytes == text.size()) return at;
  }
  return text.size() - 1;
}

uint8_t flags_at(std::string_view text, size_t at) {
  return unicode_flags()[decode_utf8(text.data() + at, text.data() + text.size()).value];
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && (flags_at(text, last_char(text)) & kWordChar) != 0;
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && (flags_at(text, 0) & kWordChar) != 0;
}

size_t spaces_at_end(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t at = last_char(rest);
    if ((flags_at(rest, at) & kSpace) == 0) break;
    rest = rest.substr(0, at);
  }
  return text.size() - rest.size();
}

size_t spaces_at_start(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && (flags_at(text, at) & kSpace) != 0) {
    at += decode_utf8(text.data() + at, text.data() + text.size()).bytes;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::sort(tokens_,
                    [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content[0])] = true;
  if (std::ranges::count(begins_, true) == 1) {
    only_first_byte_ = static_cast<uint8_t>(tokens_[0].content[0]);
  }
}

size_t AddedTokenFinder::next_candidate(std::string_view text, size_t from) const {
  if (only_first_byte_ >= 0) {
    const void* at = from < text.size()
                         ? std::memchr(text.data() + from, only_first_byte_, text.size() - from)
                         : nullptr;
    return at == nullptr ? text.size()
                         : static_cast<size_t>(static_cast<const char*>(at) - text.data());
  }
  while (from < text.size() && !begins_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

// Narrows the sorted tokens byte by byte to those that share the prefix text[at, at + depth).
bool AddedTokenFinder::longest_at(std::string_view text, size_t at, size_t& token) const {
  bool any = false;
  size_t low = 0;
  size_t high = tokens_.size();
  for (size_t depth = 0; low < high; ++depth) {
    if (tokens_[low].content.size() == depth) {
      if (depth > 0) {
        token = low;
        any = true;
      }
      ++low;
    }
    if (at + depth >= text.size()) break;
    const auto byte = static_cast<uint8_t>(text[at + depth]);
    const auto first = tokens_.begin() + static_cast<ptrdiff_t>(low);
    const auto last = tokens_.begin() + static_cast<ptrdiff_t>(high);
    const auto begin = std::partition_point(first, last, [&](const AddedToken& t) {
      return static_cast<uint8_t>(t.content[depth]) < byte;
    });
    const auto end = std::partition_point(begin, last, [&](const AddedToken& t) {
      return static_cast<uint8_t>(t.content[depth]) == byte;
    });
    low = static_cast<size_t>(begin - tokens_.begin());
    high = static_cast<size_t>(end - tokens_.begin());
  }
  return any;
}

bool AddedTokenFinder::find(std::string_view text, size_t from, size_t done, Found& found) const {
  if (tokens_.empty()) return false;
  for (size_t at = next_candidate(text, from); at < text.size(); at = next_candidate(text, from)) {
    if (!longest_at(text, at, found.token)) {
      from = at + 1;
      continue;
    }
    const AddedToken& token = tokens_[found.token];
    found = {.begin = at,
             .end = at + token.content.size(),
             .search_end = at + token.content.size(),
             .token = found.token};
    from = found.end;
    const std::string_view before = text.substr(0, found.begin);
    const std::string_view after = text.substr(found.end);
    if (token.single_word && (ends_with_word(before) || starts_with_word(after))) continue;
    if (token.lstrip) found.begin = std::max(found.begin - spaces_at_end(before), done);
    if (token.rstrip) found.end += spaces_at_start(after);
    return true;
  }
  return false;
}

}  // namespace tokamak
