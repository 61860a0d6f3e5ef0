// The matmul of a linear layer and its three gradients.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// N tokens (all leading dims), I in features, O out features.

/// Bytes of workspace of variant "cublaslt", as NVIDIA advises for Hopper.
inline constexpr int64_t kCublasWorkspace = int64_t{32} << 20U;

/// y[.., o] = sum_i x[.., i] w[o, i] (+ b[o]); bias is an optional third input. Where in features
/// are cut, y is a partial sum to which one rank adds the bias.
struct Linear {
  static constexpr std::string_view kName = "linear";
  bool adds_bias = true;       ///< false: the third input is ignored
  bool low_precision = false;  ///< LowPrecision::lower() replaces it
  std::string module;          ///< names its weight if low_precision

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;
  static std::span<const Variant> variants();
};

/// dx[.., i] (+)= sum_o dy[.., o] w[o, i]; rounded once.
struct LinearGradInput {
  static constexpr std::string_view kName = "linear_grad_input";
  bool low_precision = false;  ///< as Linear::low_precision
  std::string module;          ///< as Linear::module

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

/// dw[o, i] (+)= sum_n dy[n, o] x[n, i]; inputs x, dy; fp32 (fp64 from fp64).
struct LinearGradWeight {
  static constexpr std::string_view kName = "linear_grad_weight";
  bool low_precision = false;  ///< as Linear::low_precision
  std::string module;          ///< as Linear::module
  int64_t begin = 0;           ///< the first of `rows` rows of dw that are wanted
  int64_t rows = 0;            ///< 0: all

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::string describe() const;

  int64_t num_rows(const TensorType& dy) const { return rows > 0 ? rows : dy.dims.back(); }

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

/// db[o] (+)= sum_n dy[n, o]; fp32 (fp64 from fp64).
struct LinearGradBias {
  static constexpr std::string_view kName = "linear_grad_bias";

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

}  // namespace tokamak
