// Llama's kind of decoder: RMSNorm before each branch, rotary positions, grouped-query attention,
// SwiGLU. Names of parameters are those of transformers' LlamaForCausalLM.
#pragma once

#include "tokamak/models/model.h"

namespace tokamak {

/// Family::build of Llama and of whatever differs from it only by fields of ModelSpec.
ModelOutputs build_gated_decoder(Graph& graph, Parameters& parameters, const ModelSpec& config,
                                 const ModelInputs& inputs, uint64_t seed);

}  // namespace tokamak
