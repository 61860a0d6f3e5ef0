// The sizes and choices that define a model. They come from a named flavor or from a Hugging Face
// config.json (hf_config.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak {

struct Family;

/// Which recipe new parameters follow.
enum class InitRecipe : uint8_t {
  kTorchtitan,   ///< Llama: truncated normals, depth-scaled residual projections
  kHuggingFace,  ///< normal(initializer_range); GPT-2: residual projections over sqrt(2 layers)
};

/// How queries and keys are rotated.
struct RotarySpec {
  double theta = 0.0;
  RopeScaling scaling;

  bool operator==(const RotarySpec&) const = default;
};

struct AttentionSpec {
  bool bias = false;         ///< of the matmuls that make queries, keys and values
  bool output_bias = false;  ///< of the matmul after attention
  bool qk_norm = false;      ///< each head of queries and keys is normed before it is rotated
  /// The number of keys that a query sees in each block, as Attention::window; empty: all of them.
  std::vector<int64_t> windows;
  int64_t full_every = 0;                 ///< every N-th block has no window; 0: no pattern
  std::optional<RotarySpec> window_rope;  ///< in blocks with a window, where it is another
  bool scaled = true;                     ///< scores are divided by sqrt(query_scalar)
  double query_scalar = 0.0;              ///< 0 stands for head_dim
  bool scale_by_layer = false;            ///< scores are also divided by the layer's number, from 1
  double score_cap = 0.0;                 ///< as Attention::cap
};

/// Probabilities of dropout.
struct DropoutSpec {
  double embedding = 0.0;
  double attention = 0.0;
  double residual = 0.0;
};

struct ModelSpec {
  const Family* family = nullptr;  ///< never null in a spec that is used
  std::string name;                ///< "llama3", "llama2", "gpt2", or "hf"
  std::string flavor;
  int64_t vocab_size = 0;
  int64_t dim = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t mlp_dim = 0;
  int64_t max_seq_len = 0;  ///< rows of learned positions (GPT-2); else only exported
  bool tied = false;        ///< the output head is the token embedding
  double norm_eps = 1e-5;
  RotarySpec rope{.theta = 500000.0};
  AttentionSpec attention;
  bool mlp_bias = false;
  bool branch_norm = false;  ///< what attention and the MLP make is normed before it is added
  bool zero_centered_norms = false;  ///< norms multiply by 1 + w
  bool scale_embedding = false;      ///< embeddings are multiplied by sqrt(dim)
  GeluKind gelu = GeluKind::kTanh;   ///< of an MLP without a gate
  GateKind gate = GateKind::kSilu;
  double logit_cap = 0.0;  ///< as LmHeadLoss::cap
  DropoutSpec dropout;
  InitRecipe init = InitRecipe::kTorchtitan;
  double initializer_range = 0.02;
  std::string
      unused_members;     ///< a line about members of config.json that nobody knows, or nothing
  std::string hf_config;  ///< config.json as found, for export; empty for flavors
};

/// Returns how many keys a query of block `layer` sees, itself among them; 0: all before it.
inline int64_t window_of(const ModelSpec& spec, int64_t layer) {
  return spec.attention.windows.empty() ? 0 : spec.attention.windows[static_cast<size_t>(layer)];
}

/// Gives blocks a window, except every full_every-th; 0: none.
void set_windows(ModelSpec& spec, int64_t window);

/// Returns how block `layer` rotates.
inline RotarySpec rope_of(const ModelSpec& spec, int64_t layer) {
  if (spec.attention.window_rope && window_of(spec, layer) > 0) return *spec.attention.window_rope;
  return spec.rope;
}

/// Returns Label::module of the head, which comes after embedding, blocks and final norm.
inline int32_t head_module(const ModelSpec& spec) {
  return static_cast<int32_t>(spec.num_layers) + 2;
}

/// Returns the family that builds `model_name`; throws Error naming `model.name` and the choices.
const Family& family_of(std::string_view model_name);

/// Throws Error naming `model.name` unless it is a name of the family of `spec`, which a
/// config.json describes.
void require_name(const ModelSpec& spec, std::string_view model_name);

/// Returns the flavors of `model_name` ("llama3", "llama2", "llama", "gpt2"), smallest first, or
/// none if there is no such model.
std::vector<std::string> flavors_of(std::string_view model_name);

/// Returns the names of models with flavors.
std::vector<std::string> model_names();

/// Returns a flavor's spec; throws Error naming `model.name` or `model.flavor` and the choices.
ModelSpec flavor_spec(std::string_view model_name, std::string_view flavor);

/// Returns the rows of the learned position table, which bound the sequence, or 0 if it has none.
int64_t learned_positions(const ModelSpec& spec);

/// Where Hugging Face's tensors have another layout than our parameters.
struct WeightLayout {
  /// The module whose rows are those of q_proj, k_proj and v_proj; empty if these are separate too.
  std::string_view joined;
  std::span<const std::string_view> transposed;  ///< name suffixes of matrices stored [in, out]
};

const WeightLayout& weight_layout(const ModelSpec& spec);

/// Counts that follow from the config alone. A tied embedding counts once.
struct ParameterCount {
  int64_t total = 0;
  int64_t block_matrices = 0;  ///< elements of all matrices in blocks, which matmuls read
  /// Elements of token (and position) tables that are only looked up, which MFU formulas leave out.
  int64_t embedding = 0;
};

ParameterCount count_parameters(const ModelSpec& config);

/// The parameters of a model under their names in State, which are also those of its checkpoints.
struct ModelParameters {
  std::map<std::string, Dims> dims;
  std::string head;  ///< the weight of the output head; of a tied one the token embedding
};

ModelParameters model_parameters(const ModelSpec& config);

}  // namespace tokamak
