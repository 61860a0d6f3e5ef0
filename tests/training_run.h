// Small runs of `tokamak train` for whole-system tests: words, token files and what a run leaves
// behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/json.h"

#include "tests/program.h"

namespace tokamak {

using Words = std::vector<std::string>;

/// The folder of one of the models that PyTorch computed: llama_tiny, llama_tied, gpt2_tiny.
std::filesystem::path oracle_folder(std::string_view model);

/// `a` followed by `b`; of repeated overrides the last one holds.
Words operator+(Words a, const Words& b);

/// `tokamak train` of an oracle's model, new weights, synthetic data, float32, a constant rate, one
/// thread (busy test machines punish more) and every step logged, into `dump`.
Words train_words(std::string_view model, const std::filesystem::path& dump,
                  const Words& more = {});

/// A file of `count` token ids below `vocab_size` that repeat themselves enough to be learned.
void write_tokens(const std::filesystem::path& path, int64_t count, int64_t vocab_size);

/// One JSON object a line.
std::vector<Json> read_json_lines(const std::filesystem::path& path);

/// Lines of metrics.jsonl without what depends on the clock: step, loss, grad_norm, lr,
/// tokens_seen.
std::vector<std::string> timeless_metrics(const std::filesystem::path& dump);

/// The same of validation.jsonl.
std::vector<std::string> timeless_validation(const std::filesystem::path& dump);

/// All tensors in the safetensors files of a folder, by name, as bytes.
std::map<std::string, std::string> read_tensors(const std::filesystem::path& folder);

/// Norm of the difference over norm of `want`.
double relative_error(const std::vector<float>& got, const std::vector<float>& want);

/// Bytes of a float32 tensor as numbers.
std::vector<float> to_floats(const std::string& bytes);

int64_t count_lines(const std::string& text);

}  // namespace tokamak
