// Llama's kind of decoder has RMSNorm before each branch, rotary positions, grouped-query attention
// and a gated MLP. Parameters have the names of transformers' LlamaForCausalLM, and where branches
// are normed too, of its Gemma3ForCausalLM.
#pragma once

#include "tokamak/models/model.h"

namespace tokamak {

/// Implements Family::build for Llama and for models that differ only in fields of ModelSpec.
ModelOutputs build_gated_decoder(Graph& graph, Parameters& parameters, const ModelSpec& config,
                                 const ModelInputs& inputs, uint64_t seed);

}  // namespace tokamak
