// From the configuration that a user writes to the model and to the shape of one rank's run.
#pragma once

#include <filesystem>
#include <string>

#include "tokamak/config/check.h"
#include "tokamak/config/config.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Returns what this program can run, where `why_no_cuda` says why there is no GPU, or is "".
Capabilities capabilities(std::string why_no_cuda);

/// Whether the model comes from a config.json instead of a flavor.
bool has_hf_config(const Config& config);

/// Returns the folder of the tokenizer's files.
std::filesystem::path assets_folder(const Config& config);

/// Returns the folder of config.json. It may differ from assets_folder(), because
/// model.tokenizer_path may name a tokenizer that lies elsewhere.
std::filesystem::path model_folder(const Config& config);

/// Whether spec_of() can know the model: false where its config.json is not on this machine.
bool has_model(const Config& config);

/// Returns the model that `model.*` names: a flavor, or the config.json in model.hf_assets_path.
/// Throws Error.
ModelSpec spec_of(const Config& config);

/// Returns the dtype in which forward and backward compute.
DType compute_type(const Config& config);

/// Returns the recompute mode with what it takes, such as "selective op" or "memory_budget 0.5".
std::string recompute_text(const ActivationCheckpointConfig& config);

/// Returns the shape of one rank's run; data, tokenizer and weights need not be there.
RunShape shape_of(const Config& config, const ModelSpec& spec, const MeshPlace& place);

}  // namespace tokamak
