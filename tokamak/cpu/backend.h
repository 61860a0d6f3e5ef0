// The CPU backend.
#pragma once

#include <memory>

#include "tokamak/exec/backend.h"

namespace tokamak::cpu {

struct Options {
  int threads = 0;  ///< 0 = all that OpenMP offers
  bool reference_only = false;
};

std::unique_ptr<Backend> make_backend(const Options& options = {});

}  // namespace tokamak::cpu
