// Placement is what one mesh axis does to a value. A full placement is one Shard per axis.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tokamak/core/tensor_type.h"
#include "tokamak/graph/mesh.h"

namespace tokamak {

/// Names that a model gives to dims. parallel/ maps them to mesh axes; a model says nothing else
/// about devices.
enum class LogicalAxis : uint8_t {
  kNone,
  kBatch,
  kSequence,
  kEmbed,
  kHeads,
  kKvHeads,
  kMlp,
  kVocab,
};

using Axes = std::vector<LogicalAxis>;

/// Replicated, cut along a dim, or a pending sum over the axis.
struct Shard {
  int8_t dim = -1;  ///< >= 0: cut along this dim

  static constexpr int8_t kReplicatedDim = -1;
  static constexpr int8_t kPartialDim = -2;

  bool operator==(const Shard&) const = default;

  bool is_cut() const { return dim >= 0; }
};

inline constexpr Shard kReplicated{Shard::kReplicatedDim};
inline constexpr Shard kPartialSum{Shard::kPartialDim};

constexpr Shard cut(int dim) {
  return Shard{static_cast<int8_t>(dim)};
}

/// The elements `begin` up to `end` of a dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Range&) const = default;

  int64_t size() const { return end - begin; }
};

/// One way to run an op on one axis: these input placements give these output placements, with the
/// same kernel or with that of the op that `localize` returns.
struct Strategy {
  std::vector<Shard> in;
  std::vector<Shard> out;
  std::optional<MeshAxis> only = std::nullopt;  ///< the only axis it is for, if any
};

/// Replicates everything, which is always correct; every op lists it first.
Strategy replicate(size_t num_in, size_t num_out);

/// Returns the strategies of elementwise ops: replicate, then one for each dim of the first input,
/// in which all operands of the same rank are cut alike.
std::vector<Strategy> place_elementwise(std::span<const TensorType> in, size_t num_out);

}  // namespace tokamak
