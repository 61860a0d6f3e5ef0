// Rotary position embedding.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// How frequencies are stretched beyond the original context; kinds and fields are those of Hugging
/// Face's `rope_parameters`.
struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };

  Kind kind = Kind::kNone;
  double factor = 8.0;  ///< of all kinds but kLongRope
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_position_embeddings = 8192.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 1.0;                  ///< multiplies sines and cosines
  std::vector<double> short_factor, long_factor;  ///< one for each pair
  int64_t length = 0;  ///< the longest sequence of the run, on which kDynamic and kLongRope depend

  bool operator==(const RopeScaling&) const = default;
};

/// Returns radians per position of the head_dim / 2 pairs: f_i = theta^(-2 i / head_dim), scaled.
///
/// kLinear: f_i / factor. kDynamic: theta grows with length / original, where that is above 1.
/// kYarn: f_i of pairs that turn more than beta_fast times over the original context stays, that of
/// those that turn less than beta_slow times is divided by `factor`, and those between are
/// interpolated by i. kLongRope: f_i over the pair's long factor if the length is above the
/// original, else over its short one. kLlama3: frequencies of wavelengths above original /
/// low_freq_factor are divided by `factor`, those under original / high_freq_factor stay, those
/// between are interpolated.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

// B batch, S sequence, H heads, D head_dim.

/// Rotates pairs (i, i + head_dim / 2) of x [B, S, H, head_dim] by positions i32 [B, S] times the
/// frequency, the angle rounded to fp32 as Hugging Face does, and multiplies by the scaling's
/// attention_factor; backwards if `inverse`, which is the transpose. If
/// `num_turned` is not 0, heads after the first `num_turned` stay as they are. y may take the
/// storage of x, and those heads are then not touched.
struct Rope {
  static constexpr std::string_view kName = "rope";
  double theta = 10000.0;
  RopeScaling scaling;
  bool inverse = false;
  int64_t num_turned = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::string describe() const;
  bool operator==(const Rope&) const = default;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// y [B, S, (H_0 + H_1 + ..) D]: the heads of up to four x_i [B, S, H_i, D] side by side; those of
/// the first `num_turned` x_i are rotated as `rope` rotates. Inputs x_0, x_1, .., positions.
struct RopeConcat {
  static constexpr std::string_view kName = "rope_concat";
  Rope rope;
  int num_turned = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
