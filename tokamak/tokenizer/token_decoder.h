// Joins the texts of tokens, as the `decoder` of a tokenizer.json says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tokamak {

/// Replaces a text in each token.
struct ReplaceInTokens {
  std::string from;
  std::string to;
};

/// Makes the bytes of tokens such as <0x0A>.
struct ByteTokens {};

/// Joins all tokens to one.
struct FuseTokens {};

/// Removes up to `start` times `content` where a token begins and up to `stop` times where it ends.
struct StripTokens {
  std::string content;
  int64_t start = 0;
  int64_t stop = 0;
};

/// Makes a space of each `replacement`, but removes those of the first token if `strips_first`.
struct MetaspaceTokens {
  std::string replacement;
  bool strips_first = true;
};

/// Puts a space between each two.
struct SpacesBetweenTokens {};

using DecoderStep = std::variant<ReplaceInTokens, ByteTokens, FuseTokens, StripTokens,
                                 MetaspaceTokens, SpacesBetweenTokens>;

/// Applies the steps one after another to the list of tokens, then joins what is left.
std::string join_tokens(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps);

/// Returns the byte that a token such as <0x0A> stands for, or -1.
int byte_of_token(std::string_view token);

}  // namespace tokamak
