#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {
namespace {

struct Row {
  std::string_view flavor;
  int64_t dim, layers, heads, kv_heads, mlp, vocab;
  bool tied;
};

// Sources: Meta's releases as torchtitan's TOML-era tables give them; -4L, -7L ... keep the layer
// and cut the depth (the proxies of published benchmarks); -nemo is what NeMo 24.09's recipe ran:
// 16 key-value heads and GPT-2's vocabulary, padded.
constexpr std::array kLlama3{
    Row{"debugmodel", 256, 6, 16, 16, 768, 2048, false},
    Row{"1B", 2048, 16, 32, 8, 8192, 128256, true},
    Row{"3B", 3072, 28, 24, 8, 8192, 128256, true},
    Row{"8B", 4096, 32, 32, 8, 14336, 128256, false},
    Row{"70B", 8192, 80, 64, 8, 28672, 128256, false},
    Row{"70B-4L", 8192, 4, 64, 8, 28672, 128256, false},
    Row{"405B", 16384, 126, 128, 8, 53248, 128256, false},
    Row{"405B-7L", 16384, 7, 128, 8, 53248, 128256, false},
    Row{"405B-21L", 16384, 21, 128, 8, 53248, 128256, false},
    Row{"405B-42L", 16384, 42, 128, 8, 53248, 128256, false},
    Row{"405B-nemo", 16384, 126, 128, 16, 53248, 51200, false},
    Row{"405B-nemo-7L", 16384, 7, 128, 16, 53248, 51200, false},
    Row{"405B-nemo-21L", 16384, 21, 128, 16, 53248, 51200, false},
    Row{"405B-nemo-42L", 16384, 42, 128, 16, 53248, 51200, false},
};
constexpr std::array kLlama2{
    Row{"debugmodel", 256, 8, 16, 16, 768, 32000, false},
    Row{"271M", 1024, 16, 8, 8, 2816, 32000, false},
    Row{"1B", 2048, 18, 16, 16, 5632, 32000, false},
    Row{"7B", 4096, 32, 32, 32, 11008, 32000, false},
    Row{"13B", 5120, 40, 40, 40, 13824, 32000, false},
    Row{"26B", 5120, 80, 40, 40, 13824, 32000, false},
    Row{"70B", 8192, 80, 64, 8, 28672, 32000, false},
};
constexpr std::array kGpt2{
    Row{"124M", 768, 12, 12, 12, 3072, 50257, true},
    Row{"355M", 1024, 24, 16, 16, 4096, 50257, true},
    Row{"774M", 1280, 36, 20, 20, 5120, 50257, true},
    Row{"1.5B", 1600, 48, 25, 25, 6400, 50257, true},
};
constexpr std::array kGpt3{
    Row{"22B", 6144, 48, 64, 64, 24576, 50257, true},
    Row{"175B", 12288, 96, 96, 96, 49152, 50257, true},
    Row{"1T", 25600, 128, 128, 128, 102400, 50257, true},
};

struct Model {
  std::string_view name;
  Family family;
  std::span<const Row> rows;
  double rope_theta;
  int64_t max_seq_len;
};

constexpr std::array kModels{
    Model{"llama3", Family::kLlama, kLlama3, 500000.0, 131072},
    Model{"llama2", Family::kLlama, kLlama2, 10000.0, 4096},
    Model{"llama", Family::kLlama, kLlama2, 10000.0, 4096},
    Model{"gpt2", Family::kGpt2, kGpt2, 0.0, 1024},
    Model{"gpt3", Family::kGpt2, kGpt3, 0.0, 2048},
};

const Model* find_model(std::string_view name) {
  const auto it =
      std::find_if(kModels.begin(), kModels.end(), [&](const Model& m) { return m.name == name; });
  return it == kModels.end() ? nullptr : &*it;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  names.reserve(kModels.size());
  for (const Model& m : kModels) names.emplace_back(m.name);
  return names;
}

std::vector<std::string> flavors_of(std::string_view model_name) {
  std::vector<std::string> names;
  const Model* model = find_model(model_name);
  if (model == nullptr) return names;
  for (const Row& row : model->rows) names.emplace_back(row.flavor);
  return names;
}

ModelSpec flavor_spec(std::string_view model_name, std::string_view flavor) {
  const Model* model = find_model(model_name);
  TOK_REQUIRE(model != nullptr, "model.name = \"{}\": no such model; there are {}", model_name,
              fmt::join(model_names(), ", "));
  const auto row = std::find_if(model->rows.begin(), model->rows.end(),
                                [&](const Row& r) { return r.flavor == flavor; });
  TOK_REQUIRE(row != model->rows.end(), "model.flavor = \"{}\": {} has {}", flavor, model_name,
              fmt::join(flavors_of(model_name), ", "));
  ModelSpec c{
      .family = model->family, .name = std::string(model_name), .flavor = std::string(flavor)};
  c.vocab_size = row->vocab;
  c.dim = row->dim;
  c.num_layers = row->layers;
  c.num_heads = row->heads;
  c.num_kv_heads = row->kv_heads;
  c.head_dim = row->dim / row->heads;
  c.mlp_dim = row->mlp;
  c.max_seq_len = model->max_seq_len;
  c.tied = row->tied;
  if (model->family == Family::kLlama) {
    c.rope_theta = model->rope_theta;
    if (model->name == "llama3") c.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  } else {
    c.attention_bias = true;
    c.mlp_bias = true;
    c.init = InitRecipe::kHuggingFace;
  }
  return c;
}

ParameterCount count_parameters(const ModelSpec& c) {
  const int64_t q = c.num_heads * c.head_dim;
  const int64_t kv = c.num_kv_heads * c.head_dim;
  ParameterCount count;
  int64_t block = c.dim * (2 * q + 2 * kv);
  if (c.family == Family::kLlama) {
    block += 3 * c.dim * c.mlp_dim + 2 * c.dim;
    if (c.attention_bias) block += q + 2 * kv + c.dim;
    if (c.mlp_bias) block += 2 * c.mlp_dim + c.dim;
    count.total = c.dim;
  } else {
    block += 2 * c.dim * c.mlp_dim + q + 2 * kv + c.dim + c.mlp_dim + c.dim + 4 * c.dim;
    count.total = 2 * c.dim + c.max_seq_len * c.dim;
  }
  const int64_t table = c.vocab_size * c.dim;
  count.total += c.num_layers * block + table * (c.tied ? 1 : 2);
  // A tied table is multiplied by in the head, so it stays in the count of work.
  count.embedding = (c.tied ? 0 : table) + (c.family == Family::kGpt2 ? c.max_seq_len * c.dim : 0);
  return count;
}

}  // namespace tokamak
