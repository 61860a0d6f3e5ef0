// Reads the normalizer, the pre-tokenizer and the decoder of a tokenizer.json. Include this header
// in .cpp files only.
#pragma once

#include <optional>
#include <vector>

#include "tokamak/tokenizer/bpe_tokenizer.h"
#include "tokamak/tokenizer/formats/json_node.h"

namespace tokamak {

/// Appends the steps of `node`; throws Error naming a normalizer that is not supported.
void read_normalizer(const JsonNode& node, Normalizer& normalizer);

/// Appends the rules of `node`; returns whether the text is then in the byte-level alphabet.
bool read_pre_tokenizer(const JsonNode& node, std::vector<WordRule>& rules);

/// Returns the steps of `node`, or nothing where tokens are bytes that are only put together.
std::optional<std::vector<DecoderStep>> read_decoder(const std::optional<JsonNode>& node,
                                                     bool is_byte_level);

}  // namespace tokamak
