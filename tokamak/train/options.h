// From the configuration a user writes to the options of a trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/config/load.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// Returns which files of the run are missing: data, tokenizer, weights, config.json.
std::vector<Need> missing_files(const Config& config);

/// Raises the vocabulary of a new model of own sizes, unless model.vocab sets it, to that of the
/// tokenizer; returns a line that says so, or nothing where it is large enough.
std::optional<std::string> fit_vocab(Config& config);

/// Returns everything a trainer on one rank needs; `tokenizer` (may be null) must outlive it.
TrainerOptions options_of(const Config& config, const Tokenizer* tokenizer, const MeshPlace& place);

/// Returns the tracker that metrics.tracker or metrics.enable_wandb names, or nothing.
std::string tracker_of(const MetricsConfig& metrics);

/// Returns the tokenizer of the run, or null if its data needs none.
std::unique_ptr<Tokenizer> tokenizer_of(const Config& config);

}  // namespace tokamak
