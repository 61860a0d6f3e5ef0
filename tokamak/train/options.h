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

/// What of the outside world is not there: data, tokenizer, weights, config.json.
std::vector<Need> missing_files(const Config& config);

/// Everything a trainer on one rank needs; `tokenizer` (may be null) must outlive the result.
TrainerOptions options_of(const Config& config, const Tokenizer* tokenizer, const MeshPlace& place);

/// The tokenizer of the run, or null where its data needs none.
std::unique_ptr<Tokenizer> tokenizer_of(const Config& config);

}  // namespace tokamak
