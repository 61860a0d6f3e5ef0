#include "tests/mesh_cli_run.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

namespace tokamak {
namespace {

Json llama_config(bool tied) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 48},
          {"intermediate_size", 92},
          {"num_hidden_layers", 6},
          {"num_attention_heads", 6},
          {"num_key_value_heads", tied ? 6 : 2},
          {"head_dim", 8},
          {"rms_norm_eps", 1e-5},
          {"vocab_size", 121},
          {"max_position_embeddings", 128},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", tied}};
}

// torchtitan's debugmodel of llama3 with a quarter of each width: the same blocks and heads.
Json debug_config() {
  Json config = llama_config(false);
  config.update({{"hidden_size", 64},
                 {"intermediate_size", 192},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 16},
                 {"head_dim", 4},
                 {"vocab_size", 512},
                 {"rope_theta", 500000.0}});
  return config;
}

Json gpt2_config() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", 48},
          {"n_head", 6},
          {"n_layer", 6},
          {"n_positions", 64},
          {"n_inner", 92},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"layer_norm_epsilon", 1e-5},
          {"vocab_size", 121},
          {"tie_word_embeddings", true}};
}

Json config_of(const std::string& model) {
  if (model == "gpt2") return gpt2_config();
  if (model == "debugmodel") return debug_config();
  return llama_config(model == "llama_tied");
}

double relative(double got, double want) {
  return std::abs(got - want) / std::abs(want);
}

}  // namespace

std::filesystem::path write_model(const std::filesystem::path& folder, const std::string& model) {
  std::filesystem::create_directories(folder);
  FileWriter(folder / "config.json").write(config_of(model).dump());
  return folder;
}

Words on_ranks(int num_ranks, const Words& train) {
  if (num_ranks == 1) return train;
  return Words{train[0], "launch", "-n", std::to_string(num_ranks), "--"} +
         Words{train.begin() + 1, train.end()};
}

ProgramResult run_ok(const Words& words) {
  ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err << fmt::format("{}", fmt::join(words, " "));
  return result;
}

Curve read_curve(const std::filesystem::path& dump) {
  Curve curve;
  const auto path = dump / "metrics.jsonl";
  if (!path_exists(path)) return curve;
  for (const Json& line : read_json_lines(path)) {
    curve.loss.push_back(line["loss"].get<double>());
    curve.grad_norm.push_back(line["grad_norm"].get<double>());
  }
  return curve;
}

void expect_same_curve(const std::filesystem::path& got, const std::filesystem::path& want,
                       size_t steps) {
  const Curve a = read_curve(got);
  const Curve b = read_curve(want);
  ASSERT_EQ(a.loss.size(), steps);
  ASSERT_EQ(b.loss.size(), steps);
  double worst = 0.0;
  for (size_t i = 0; i < steps; ++i) {
    EXPECT_LE(relative(a.loss[i], b.loss[i]), 1e-5)
        << "loss of step " << i + 1 << ": " << a.loss[i] << ", wanted " << b.loss[i];
    EXPECT_LE(relative(a.grad_norm[i], b.grad_norm[i]), 1e-5)
        << "norm of step " << i + 1 << ": " << a.grad_norm[i] << ", wanted " << b.grad_norm[i];
    worst =
        std::max({worst, relative(a.loss[i], b.loss[i]), relative(a.grad_norm[i], b.grad_norm[i])});
  }
  ::testing::Test::RecordProperty("worst", fmt::format("{:.2e}", worst));
}

void expect_same_parameters(const std::filesystem::path& got, const std::filesystem::path& want,
                            double slack) {
  const auto a = read_tensors(got);
  const auto b = read_tensors(want);
  ASSERT_FALSE(b.empty());
  ASSERT_EQ(a.size(), b.size());
  double all_difference = 0.0;
  double all_norm = 0.0;
  for (const auto& [name, bytes] : b) {
    const auto it = a.find(name);
    ASSERT_NE(it, a.end()) << name;
    ASSERT_EQ(it->second.size(), bytes.size()) << name;
    const auto x = to_floats(it->second);
    const auto y = to_floats(bytes);
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < y.size(); ++i) {
      difference += std::pow(double{x[i]} - double{y[i]}, 2);
      norm += std::pow(double{y[i]}, 2);
    }
    EXPECT_LE(std::sqrt(difference),
              1e-5 * std::sqrt(norm) + slack * std::sqrt(static_cast<double>(y.size())))
        << name;
    all_difference += difference;
    all_norm += norm;
  }
  EXPECT_LE(std::sqrt(all_difference), 1e-5 * std::sqrt(all_norm));
}

}  // namespace tokamak
