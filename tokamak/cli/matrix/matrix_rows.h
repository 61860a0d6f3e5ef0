// The rows of `tokamak bench matrix`: each is a run of `tokamak train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokamak::cli {

/// "gpt2:1.5B@16x1024": a flavor and the tokens of a rank's microbatch.
struct MatrixModel {
  std::string flavor;
  int64_t batch = 1;
  int64_t seq_len = 0;
};

/// The words of the axes; a row is one of each.
struct MatrixAxes {
  std::vector<MatrixModel> models;
  std::vector<int64_t> ranks;           ///< more than one are tried as ddp and as fsdp
  std::vector<std::string> precisions;  ///< bf16, or a recipe of low precision
  std::vector<std::string> recomputes;  ///< none, op, full, or a number N for every N-th block
  std::vector<std::string> graphs;      ///< on and off: CUDA graphs
};

/// Returns the models of "NAME:FLAVOR@BATCHxTOKENS,..."; throws Error that names the word.
std::vector<MatrixModel> models_of(const std::string& words);

struct MatrixRow {
  MatrixModel model;
  int64_t ranks = 1;
  std::string sharding;  ///< "", ddp or fsdp
  std::string precision;
  std::string recompute;
  std::string graphs;

  /// Whether matmuls are in low precision.
  bool is_low() const { return precision != "bf16"; }

  /// Whether llm-train-bench, whose matrix this is, leaves the row out: it has low precision
  /// neither with compilation, which records CUDA graphs there, nor with recompute.
  bool is_left_out_by_peer() const;

  /// "gpt2:1.5B 16x1024 fsdp2 tensorwise recompute op graphs on"
  std::string name() const;

  /// Returns the overrides of `train`.
  std::vector<std::string> words() const;
};

/// Returns what charts call rows in low precision, and others.
std::string precision_kind(bool is_low);

/// Returns every combination. Throws Error naming the axis for a word that it does not have.
std::vector<MatrixRow> rows_of(const MatrixAxes& axes);

/// A row as it was measured, or why it was not.
struct MatrixResult {
  MatrixRow row;
  std::string reason;         ///< "" = measured
  std::optional<double> tps;  ///< per rank, median of the later half of the steps
  std::optional<double> mfu;  ///< percent
  std::optional<double> memory_gib;
  std::optional<double> priced_tps;  ///< per rank, before the run
  std::optional<double> planned_gib;
};

/// Return the results as a table for other programs, as JSON and as a page. `title` names the
/// device.
std::string matrix_csv(const std::vector<MatrixResult>& results);
std::string matrix_json(const std::vector<MatrixResult>& results);
std::string matrix_page(const std::string& title, const std::vector<MatrixResult>& results);

/// Returns a line for a terminal.
std::string matrix_line(const MatrixResult& result);

}  // namespace tokamak::cli
