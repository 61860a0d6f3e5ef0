// Token caches as Megatron's .bin and .idx files.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tokamak/data/cache/cache_journal.h"

namespace tokamak {

struct MegatronCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
};

/// Writes the tokens of a complete cache to PREFIX.bin, and PREFIX.idx with one sequence and one
/// document for each document that has tokens. Each file replaces an older one when it is whole,
/// the index last. Throws Error if the cache is damaged or a path cannot be written.
MegatronCounts write_megatron(const CacheFolder& cache, const std::filesystem::path& prefix);

}  // namespace tokamak
