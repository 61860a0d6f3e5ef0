#include "tokamak/core/error.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view, std::string_view name,
                                                const TokenizerSideFiles&) {
  fail("{}: reading tokenizer.json is not built yet", name);
}

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view, std::string_view name) {
  fail("{}: reading tokenizer.model is not built yet", name);
}

}  // namespace tokamak
