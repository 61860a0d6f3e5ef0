// Packing of dims for communication: pieces of a dim become rows of equal length, and back.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// x -> [n, m]: row k is piece k of x along `dim`, row-major, padded with zeros; n = sizes.size().
struct Split {
  static constexpr std::string_view kName = "split";
  int dim = 0;
  std::vector<int64_t> sizes;  ///< of the pieces along `dim`; they add up to its extent
  int64_t row_numel = 0;       ///< m; 0: that of the longest piece
  /// If given, `dim` consists of order.size() equal chunks, none in two pieces, and chunk j of x is
  /// chunk order[j] of the pieces laid end to end.
  std::vector<int> order;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// [n, m] -> x of `dims`, the inverse of Split; m may be longer than the longest piece.
struct Join {
  static constexpr std::string_view kName = "join";
  int dim = 0;
  std::vector<int64_t> sizes;
  Dims dims;
  std::vector<int> order;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// y = x from `begin` up to `end` along `dim`, then `zeros` zeros: a dense copy.
struct SliceDim {
  static constexpr std::string_view kName = "slice_dim";
  int dim = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t zeros = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// y = the inputs one after the other along `dim`; they agree in dtype and all other dims.
struct ConcatDim {
  static constexpr std::string_view kName = "concat_dim";
  int dim = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// y = the sum of the inputs, each from its entry of `begins` on along `dim`, which has `extent`; 0
/// where there is no input. fp32 (fp64 from fp64); y may take the storage of the first.
struct SumSlices {
  static constexpr std::string_view kName = "sum_slices";
  int dim = 0;
  int64_t extent = 0;
  std::vector<int64_t> begins;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
