// Finds tokens such as <|begin_of_text|> in text before it is cut into words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// One entry of `added_tokens`, whose fields mean what they mean to Hugging Face.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

/// Finds added tokens in a text: the leftmost first, and the longest at one place. It is immutable.
class AddedTokenFinder {
 public:
  /// Tokens with empty content are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  /// Calls `on_text(string_view)` and `on_token(id)` for the parts of `text` in order. Stripped
  /// spaces belong to their token.
  template <class OnText, class OnToken>
  void split(std::string_view text, OnText&& on_text, OnToken&& on_token) const {
    size_t done = 0;
    size_t from = 0;
    Found found;
    while (find(text, from, done, found)) {
      if (done < found.begin) on_text(text.substr(done, found.begin - done));
      on_token(tokens_[found.token].id);
      done = found.end;
      from = found.search_end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Found {
    size_t begin = 0;
    size_t end = 0;
    size_t search_end = 0;
    size_t token = 0;
  };

  bool find(std::string_view text, size_t from, size_t done, Found& found) const;
  size_t next_candidate(std::string_view text, size_t from) const;
  bool longest_at(std::string_view text, size_t at, size_t& token) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};
  int only_first_byte_ = -1;
};

}  // namespace tokamak
