// Scales of 8-bit floats that follow from the maxima of earlier steps.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// A table of delayed scales has a row for each site, which is an operand of a matmul. A row holds a
// scale, then a history of maxima, the newest first; places that no step has filled hold 0. A scale
// of 0 means that there is none yet.

/// maxima[r] = the greatest of the inputs that belong to row r; an output that accumulates keeps
/// what is greater there. The inputs are maxima in fp32 [1]; NaN counts as greatest. The output is
/// fp32 [rows], and each row has an input.
struct StageMaxima {
  static constexpr std::string_view kName = "stage_maxima";
  static constexpr int kMostInputs = 128;
  std::vector<int> row_of;  ///< by input

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// The step that ends a table's step. The inputs are the table [sites, 1 + length], the maxima of
/// this step [sites] and a factor [1], all in fp32. Where 0 < maximum < infinity, it becomes the
/// newest of its row's history, and the scale becomes min(largest 2^-margin / a, FLT_MAX), where a
/// is the greatest of the history or, with `most_recent`, the newest. Other rows stay, and all rows
/// do where the factor is not finite, as a diverged step has it. The outputs are the table, in
/// place, and in fp64 [1] the number of sites whose maximum did not fit under their old scale.
/// Source: Transformer Engine, common/recipe/delayed_scaling.cu.
struct AmaxHistory {
  static constexpr std::string_view kName = "amax_history";
  std::vector<float> largest;  ///< of each site's format
  int margin = 0;
  bool most_recent = false;
  bool power_of_two = false;  ///< scales are rounded down to powers of two

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0, .must = true}}; }

  std::vector<int> accumulates() const { return {1}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
