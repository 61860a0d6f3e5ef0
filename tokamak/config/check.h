// Finds what is wrong with a Config (errors) and what only this build or world lacks (needs lines).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/config/load.h"

namespace tokamak {

/// Limits beyond which nothing is planned: tokens per microbatch, microbatches per step.
inline constexpr int64_t kMostTokens = int64_t{1} << 26;
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 16;

/// The mesh, outermost first, with no -1 left.
struct Degrees {
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;
  int64_t cp = 1;
  int64_t tp = 1;

  /// Ranks that read different data.
  int64_t dp() const { return dp_replicate * dp_shard; }

  int64_t world() const { return pp * dp_replicate * dp_shard * cp * tp; }
};

/// Returns the product of the degrees, with -1 counted as 1, which is the world size where no
/// launcher gives it.
int64_t default_world_size(const Config& config);

/// Returns the mesh over `world_size` ranks. Throws Error naming the keys if the product of the
/// degrees is another.
Degrees resolve_degrees(const ParallelismConfig& parallelism, int64_t world_size);

/// Returns the sequences per optimizer step over the whole mesh.
int64_t global_batch_size(const Config& config, const Degrees& degrees);

/// Returns the number that `text` writes with k, M, B or T, as "1.5B", or nothing.
std::optional<int64_t> parse_token_count(std::string_view text);

/// Sets training.steps from training.tokens, if that is given. REQUIRES: validate() passed.
void set_steps(Config& config, const Degrees& degrees);

/// Throws Error with one line for each rule that the keys break together.
void validate(const Config& config, int64_t world_size);

/// What a build has.
struct Capabilities {
  std::string why_no_cuda = "built without CUDA";  ///< empty if there is a GPU
  /// Each family of models with its flavors. If it is empty, models are not checked here.
  std::vector<std::pair<std::string, Strings>> models;
  Strings datasets = {"shakespeare", "c4",     "c4_test",  "c4_validation",
                      "text",        "tokens", "synthetic"};
};

/// Returns one entry for every value that asks for what `capabilities` lacks, in the order of the
/// keys. The caller checks files and memory.
std::vector<Need> needs(const Config& config, const Capabilities& capabilities);

}  // namespace tokamak
