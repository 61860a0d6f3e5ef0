// Ops that also take the amax of their output, or quantize it, in the kernel that computes it.
#pragma once

#include <variant>
#include <vector>

#include "tokamak/ops/float8/quantize.h"

namespace tokamak {

/// An op that reads an output of another op inside that op's kernel.
struct Float8Reader {
  int of = 0;  ///< the output
  std::variant<Amax, Quantize> op;
  bool takes_maxima = false;  ///< an input of its own: those of `quantize`

  /// Whether a row of a table of delayed scales is an input of its own, the last.
  bool takes_row() const;

  /// Returns the number of its own inputs.
  size_t num_inputs() const { return (takes_maxima ? 1 : 0) + (takes_row() ? 1 : 0); }

  /// Returns the quantized values of rows whose one scale is delayed, or null if the reader is
  /// another.
  const Quantize* delayed_rows() const;

  /// Returns the quantized values whose maxima are taken in the pass that makes them, or null if
  /// the reader is another.
  const Quantize* quantized_in_one_pass() const;
};

/// Computes `first` and the `readers` of its outputs. Each value is rounded as `first` rounds it
/// before they read it, so all bits are those of the ops apart. The inputs are those of `first`,
/// then the readers' own; the outputs are those of `first` that are stored, then the readers', in
/// order.
struct FusedFloat8 {
  static constexpr std::string_view kName = "fused_float8";
  AnyOp first;
  std::vector<bool> stores;  ///< by output of `first`
  std::vector<Float8Reader> readers;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::vector<int> accumulates() const;
  std::string describe() const;

  static std::span<const Variant> variants();

  /// Returns how many of the inputs are those of `first`.
  size_t num_first_inputs(size_t num_inputs) const;

  /// Returns the types of all outputs of `first`.
  Types first_outputs(std::span<const TensorType> in) const;

  /// Whether nothing is computed where tables have scales: only maxima are taken for want of these.
  bool is_gated() const;

  /// Returns the one maximum of a whole tensor that is taken of values that are all stored, or
  /// null if the readers are others.
  const Amax* lone_maximum() const;
};

/// Returns the output of `op` whose maximum its kernels can take, or -1.
int output_with_maximum(const AnyOp& op);

/// Returns whether kernels of `op` can quantize the rows of output_with_maximum() in the pass
/// that computes them, with or without storing it.
bool quantizes_rows(const AnyOp& op);

/// Returns whether kernels of `op` can take maxima and quantize all its outputs, tile by tile,
/// without storing them; those of gelu_grad only where scales are delayed.
bool quantizes_tiles(const AnyOp& op);

/// Returns whether those kernels can store output `out` in addition to its quantized values.
bool stores_beside_tiles(const AnyOp& op, int out);

/// Returns why no backend but a CPU has a kernel for these readers, or ""; `in` begins with the
/// inputs of `first`.
std::string why_not_fused(const FusedFloat8& op, std::span<const TensorType> in);

/// Replaces nodes and the `amax` and `quantize` nodes that read them by FusedFloat8, where that
/// moves fewer bytes. Quantized values of tiles are made without storing values. Where they need a
/// maximum of the values themselves, the op runs twice: once for the maxima, once for the quantized
/// values. Delayed quantized values need it only for want of a scale: the first pass then does
/// nothing in most steps.
Graph fuse_readers(const Graph& graph);

/// Takes maxima of columns alone where the quantized values of rows that are made with them are not
/// read: the backward makes other quantized values of what it computes again.
Graph drop_unread_quantized(const Graph& graph);

}  // namespace tokamak
