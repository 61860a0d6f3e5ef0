#include "tokamak/cli/matrix/matrix_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/cli/model_files.h"
#include "tokamak/core/error.h"
#include "tokamak/core/value.h"
#include "tokamak/parallel/float8/float8_recipe.h"

namespace tokamak::cli {
namespace {

std::vector<std::string> parts_of(const std::string& words, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != words.npos; begin = end + 1) {
    end = words.find(separator, begin);
    parts.push_back(words.substr(begin, end - begin));
  }
  return parts;
}

std::optional<int64_t> positive(const std::string& text) {
  const auto n = parse_number<int64_t>(text);
  return n && *n >= 1 ? n : std::nullopt;
}

void check_precision(const std::string& word) {
  TOK_REQUIRE(word == "bf16" || find_float8_recipe(word),
              "--precisions \"{}\": wanted bf16, tensorwise, delayed, rowwise, rowwise_with_gw_hp "
              "or blockwise",
              word);
}

void check_recompute(const std::string& word) {
  TOK_REQUIRE(word == "none" || word == "op" || word == "full" || positive(word),
              "--recompute \"{}\": wanted none, op, full or a number", word);
}

}  // namespace

std::vector<MatrixModel> models_of(const std::string& words) {
  std::vector<MatrixModel> models;
  for (const std::string& word : parts_of(words, ',')) {
    const std::vector<std::string> parts = parts_of(word, '@');
    const std::vector<std::string> sizes =
        parts.size() == 2 ? parts_of(parts[1], 'x') : std::vector<std::string>{};
    const auto batch = sizes.size() == 2 ? positive(sizes[0]) : std::nullopt;
    const auto seq_len = sizes.size() == 2 ? positive(sizes[1]) : std::nullopt;
    TOK_REQUIRE(batch && seq_len,
                "--models \"{}\": wanted NAME:FLAVOR@BATCHxTOKENS, as gpt2:1.5B@16x1024", word);
    spec_of_word(parts[0]);
    models.push_back({.flavor = parts[0], .batch = *batch, .seq_len = *seq_len});
  }
  return models;
}

bool MatrixRow::is_left_out_by_peer() const {
  return is_low() && (graphs == "on" || recompute != "none");
}

std::string MatrixRow::name() const {
  return fmt::format("{} {}x{} {}{} recompute {} graphs {}", model.flavor, model.batch,
                     model.seq_len, sharding.empty() ? "" : fmt::format("{}{} ", sharding, ranks),
                     precision, recompute, graphs);
}

std::vector<std::string> MatrixRow::words() const {
  const size_t colon = model.flavor.find(':');
  std::vector<std::string> words{
      "--model.name=" + model.flavor.substr(0, colon),
      "--model.flavor=" + model.flavor.substr(colon + 1),
      "--training.dataset=synthetic",
      fmt::format("--training.local_batch_size={}", model.batch),
      fmt::format("--training.seq_len={}", model.seq_len),
      fmt::format("--job.cuda_graphs={}", graphs == "on" ? "always" : "never"),
  };
  const bool is_mode = recompute == "none" || recompute == "full";
  words.push_back("--activation_checkpoint.mode=" + (is_mode ? recompute : "selective"));
  if (!is_mode) words.push_back("--activation_checkpoint.selective_ac_option=" + recompute);
  if (is_low()) {
    words.emplace_back("--model.converters=quantize.linear.float8");
    words.push_back("--quantize.linear.float8.recipe_name=" + precision);
    words.emplace_back("--quantize.linear.float8.filter_fqns=output");
  }
  if (sharding == "ddp") {
    words.push_back(fmt::format("--parallelism.data_parallel_replicate_degree={}", ranks));
    words.emplace_back("--parallelism.data_parallel_shard_degree=1");
  }
  return words;
}

std::string precision_kind(bool is_low) {
  return is_low ? "fp8" : "bf16";
}

std::vector<MatrixRow> rows_of(const MatrixAxes& axes) {
  for (const std::string& word : axes.precisions) check_precision(word);
  for (const std::string& word : axes.recomputes) check_recompute(word);
  for (const std::string& word : axes.graphs)
    TOK_REQUIRE(word == "on" || word == "off", "--graphs \"{}\": wanted on or off", word);
  std::vector<MatrixRow> rows;
  for (const MatrixModel& model : axes.models) {
    for (const int64_t ranks : axes.ranks) {
      TOK_REQUIRE(ranks >= 1, "--ranks {}: wanted 1 or more", ranks);
      const std::vector<std::string> shardings =
          ranks == 1 ? std::vector<std::string>{""} : std::vector<std::string>{"ddp", "fsdp"};
      for (const std::string& sharding : shardings) {
        for (const std::string& precision : axes.precisions) {
          for (const std::string& recompute : axes.recomputes) {
            for (const std::string& graphs : axes.graphs)
              rows.push_back({model, ranks, sharding, precision, recompute, graphs});
          }
        }
      }
    }
  }
  return rows;
}

}  // namespace tokamak::cli
