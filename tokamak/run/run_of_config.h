// From the configuration that a user writes to the model and to the run of one rank as it is
// planned.
#pragma once

#include <filesystem>

#include "tokamak/config/config.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// Whether the model is that of a config.json, not of a flavor.
bool has_hf_config(const Config& config);

/// The folder of the tokenizer's files.
std::filesystem::path assets_folder(const Config& config);

/// The folder of config.json, which may be another one: model.tokenizer_path may name a tokenizer
/// that lies elsewhere than the model.
std::filesystem::path model_folder(const Config& config);

/// Whether spec_of() can know the model: false where its config.json is not on this machine.
bool has_model(const Config& config);

/// The model that `model.*` names: a flavor, or the config.json in model.hf_assets_path. Throws
/// Error.
ModelSpec spec_of(const Config& config);

/// The dtype in which forward and backward compute.
DType compute_type(const Config& config);

/// The run of one rank as planned, without data, tokenizer or weights being there.
RunShape shape_of(const Config& config, const ModelSpec& spec, const MeshPlace& place);

}  // namespace tokamak
