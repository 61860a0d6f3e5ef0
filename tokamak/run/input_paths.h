// Where the inputs of a run are, as its configuration file means them.
#pragma once

#include <string>
#include <vector>

#include "tokamak/config/config.h"

namespace tokamak {

/// Puts the home folder in place of a leading `~` in the paths of `config`, and completes the
/// relative paths of inputs: tokenizer, data and weights to begin with. One that the working folder
/// does not have is looked for in each folder above the configuration file, nearest first, since
/// files of torchtitan mean their own checkout. `dataset = "c4_test"` without a path means
/// tests/assets/c4_test, as in torchtitan. Returns a note for each path that was found above the
/// file.
std::vector<std::string> find_inputs(Config& config);

}  // namespace tokamak
