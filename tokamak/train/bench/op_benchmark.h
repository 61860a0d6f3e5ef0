// Timing ops by themselves, at the shapes that a training step gives them.
#pragma once

#include <set>
#include <string_view>
#include <vector>

#include "tokamak/exec/backend.h"
#include "tokamak/run/op_table.h"

namespace tokamak {

class SceneBuilder;

/// Ops whose shapes follow from one set of sizes, such as a matmul and its gradients.
struct OpScene {
  std::string_view name;
  std::string_view sizes;      ///< what the dims are: "tokens x out x in"
  std::vector<Dims> of_llama;  ///< of Llama-3-8B, two sequences of 8192
  std::vector<Dims> small;     ///< quick on a CPU
  void (*build)(SceneBuilder& b, const Dims& dims) = nullptr;
  /// "", or the group of scenes that want more than every device has: "all" and machine files leave
  /// it out.
  std::string_view group = {};
  std::set<std::string_view> ops = {};  ///< that it builds
};

const std::vector<OpScene>& op_scenes();

/// Runs the scene on random operands, enough sets of them that none stays in a cache, for about
/// `budget_s`. Returns a row for each op, variant and shape: seconds of one call (the median; on a
/// device by its events), with its flops, bytes and floor, and the number of measured `calls`.
/// Throws Error if `dims` do not fit.
std::vector<OpTime> benchmark_scene(const OpScene& scene, const Dims& dims, DType dtype,
                                    Backend& backend, const DeviceRates& rates, double budget_s);

}  // namespace tokamak
