// A run scaled down until a machine at hand can train it. It keeps the kinds of mesh axes, the
// schedule, recompute, dtypes and ratios of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/config/check.h"
#include "tokamak/config/config.h"

namespace tokamak {

/// Bounds on the size of a proxy. The defaults suit a few CPU cores.
struct ProxyLimits {
  int64_t num_ranks = 16;
  int64_t most_per_axis = 2;     ///< the degree of one mesh axis
  int64_t dim = 128;             ///< width of the model, unless one group of heads needs more
  int64_t layers_per_stage = 8;  ///< of one pipeline stage
  int64_t microbatches = 8;      ///< for each pipeline rank
  int64_t tokens = 128;          ///< of one microbatch
};

/// Returns the limits of one GPU of `memory_bytes` in a job of `num_gpus`.
ProxyLimits gpu_proxy_limits(int64_t num_gpus, int64_t memory_bytes);

/// One size before and after.
struct ScaledSize {
  std::string what;
  std::string whole;
  std::string proxy;
};

struct Proxy {
  Config config;  ///< with every degree of the mesh written out
  Degrees degrees;
  int64_t most_ranks = 1;  ///< ProxyLimits::num_ranks
  std::vector<ScaledSize> sizes;
  std::string kept;  ///< in one line: what was not scaled
};

/// Scales `whole` down. Each axis of the mesh that is above 1 gets 2, in the order tp, pp, cp,
/// dp_shard, dp_replicate while there are ranks, then more up to `most_per_axis`. Layers per stage,
/// stages per rank, microbatches per pipeline rank, heads per key-value head and the ratios of MLP,
/// sequence and vocabulary to the model's width stay as they are, rounded, up to the limits. Data
/// is synthetic, at most 50 steps, nothing is loaded, saved or validated. Throws Error naming a key
/// that lists layers or microbatches one by one.
/// REQUIRES: validate(whole, degrees.world()) passed.
Proxy scale_down(const Config& whole, const Degrees& degrees, const ProxyLimits& limits);

/// Returns a table: what, `title`, proxy; then what was kept.
std::string proxy_text(const Proxy& proxy, const std::string& title);

}  // namespace tokamak
