// Published measurements of training runs: rows of a CSV file in one of three shapes, told by the
// header: training_runs.csv, and vTrain's files with and without the model's size
// (docs/pricing-accuracy.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

/// One run as its source states it. Numbers that are absent are 0.
struct MeasuredRow {
  int line = 0;          ///< of the file; the header is 1
  int number = 0;        ///< among the rows, from 1
  std::string source;    ///< who published it
  std::string gpu;       ///< as the source spells it: "H100", "A100-80GB"
  std::string machine;   ///< machine files instead of the GPU's own: "a100-80+roce-100"; or empty
  std::string model;     ///< its name there
  std::string sharding;  ///< of data parallel ranks: "FSDP2", "dist-opt (ZeRO-1)", or empty
  std::string precision;
  std::string recompute;  ///< "none", "full", "selective...", or empty = none
  std::string notes;
  int64_t num_gpus = 0, num_layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, vocab = 0;
  int64_t seq_len = 0, global_batch = 0, microbatch = 0;  ///< batches in sequences
  int64_t tp = 0, pp = 0, cp = 0, dp = 0;
  int64_t chunks_per_stage = 0;  ///< virtual pipeline; 0 = not stated
  double step_time_s = 0.0;
  double stated_mfu = 0.0;  ///< by the source's own formula; 0 = not stated
  std::string measured_as;  ///< the column that the time was computed from
  std::string skipped;      ///< why the row cannot be priced: the missing column, or what we lack

  int64_t num_microbatches() const { return global_batch / (dp * microbatch); }
};

/// Whether a column's text holds `part`.
inline bool mentions(std::string_view column, std::string_view part) {
  return column.find(part) != std::string_view::npos;
}

/// Throws Error: a file that cannot be read, or has none of the known headers.
std::vector<MeasuredRow> read_measured_rows(const std::filesystem::path& file);

/// The same from text; `name` for errors.
std::vector<MeasuredRow> parse_measured_rows(const std::string& text, const std::string& name);

/// Whether the MLP has a gate: Llama, Qwen, Mixtral; not GPT, MPT, BLOOM, Nemotron.
bool has_gated_mlp(const MeasuredRow& row);

/// Which software ran, by the source and the notes: "nemo", "megatron" (of 2021), "mosaic",
/// "vtrain", "torchtitan" and "torchtitan-compiled", as which any other trainer of PyTorch is
/// priced. It names a file of machines/software; "llm.c" (llm.q too) and "tokamak" are trainers of
/// fused kernels, which need none.
std::string software_of(const MeasuredRow& row);

}  // namespace tokamak
