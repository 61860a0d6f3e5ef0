#include "tokamak/tokenizer/token_decoder.h"

#include <charconv>

#include "tokamak/tokenizer/normalizer.h"

namespace tokamak {
namespace {

std::string stripped(std::string_view token, const StripTokens& step) {
  if (step.content.empty()) return std::string(token);
  for (int64_t n = 0; n < step.start && token.starts_with(step.content); ++n)
    token.remove_prefix(step.content.size());
  for (int64_t n = 0; n < step.stop && token.ends_with(step.content); ++n)
    token.remove_suffix(step.content.size());
  return std::string(token);
}

struct Apply {
  std::vector<std::string>& tokens;

  void operator()(const ReplaceInTokens& step) const {
    for (std::string& token : tokens) token = replace_all(token, step.from, step.to);
  }

  void operator()(const ByteTokens&) const {
    for (std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte >= 0) token.assign(1, static_cast<char>(byte));
    }
  }

  void operator()(const FuseTokens&) const {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }

  void operator()(const StripTokens& step) const {
    for (std::string& token : tokens) token = stripped(token, step);
  }

  void operator()(const SpacesBetweenTokens&) const {
    for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
  }

  void operator()(const MetaspaceTokens& step) const {
    bool is_first = true;
    for (std::string& token : tokens) {
      token = replace_all(token, step.replacement, is_first && step.strips_first ? "" : " ");
      is_first = false;
    }
  }
};

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = -1;
  const char* end = token.data() + 5;
  const auto parsed = std::from_chars(token.data() + 3, end, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? byte : -1;
}

std::string join_tokens(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps) {
  for (const DecoderStep& step : steps) std::visit(Apply{tokens}, step);
  FuseTokens fuse;
  Apply{tokens}(fuse);
  return std::move(tokens[0]);
}

}  // namespace tokamak
