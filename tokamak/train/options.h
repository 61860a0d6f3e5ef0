// From the configuration a user writes to the options of a trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/config/load.h"
#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/train/mesh_options.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// Whether spec_of() can know the model: false where its config.json is not on this machine.
bool has_model(const Config& config);

/// The model that `model.*` names: a flavor, or the config.json in model.hf_assets_path. Throws
/// Error.
ModelSpec spec_of(const Config& config);

/// What forward and backward compute in.
DType compute_type(const Config& config);

/// The run of one rank as planned, without data, tokenizer or weights being there.
RunShape shape_of(const Config& config, const ModelSpec& spec, const MeshPlace& place);

/// What of the outside world is not there: data, tokenizer, weights, config.json.
std::vector<Need> missing_files(const Config& config);

/// Everything a trainer on one rank needs; `tokenizer` (may be null) must outlive the result.
TrainerOptions options_of(const Config& config, const Tokenizer* tokenizer, const MeshPlace& place);

/// The tokenizer of the run, or null where its data needs none.
std::unique_ptr<Tokenizer> tokenizer_of(const Config& config);

}  // namespace tokamak
