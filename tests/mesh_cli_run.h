// `tokamak launch -n N -- train` against `tokamak train`: models, words and what must be equal.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/training_run.h"

namespace tokamak {

/// Writes config.json of a model of six layers, small and nowhere divisible: "llama" has 6 heads in
/// groups of 3, "llama_tied" and "gpt2" 6 with keys of their own. "debugmodel" is torchtitan's, a
/// quarter as wide. Returns the folder.
std::filesystem::path write_model(const std::filesystem::path& folder, const std::string& model);

/// The same words as ranks of one job; one rank is no job.
Words on_ranks(int num_ranks, const Words& train);

/// Runs and expects exit code 0.
ProgramResult run_ok(const Words& words);

/// Loss and gradient norm of each step (of metrics.jsonl, in order).
struct Curve {
  std::vector<double> loss;
  std::vector<double> grad_norm;
};

Curve read_curve(const std::filesystem::path& dump);

/// Expects `steps` steps, each with loss and gradient norm within 1e-5 relative. The largest
/// difference is recorded as the property "worst".
void expect_same_curve(const std::filesystem::path& got, const std::filesystem::path& want,
                       size_t steps);

/// Compares float32 safetensors of two folders with Hugging Face names. Each tensor must be within
/// 1e-5 |b| + `slack` sqrt(n), all together within 1e-5.
void expect_same_parameters(const std::filesystem::path& got, const std::filesystem::path& want,
                            double slack);

}  // namespace tokamak
