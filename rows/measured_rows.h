// Published measurements of training runs, one in each row of a CSV file. Rules
// (rows/row_rules.h) say what the file's texts mean (docs/pricing-accuracy.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokamak/graph/passes.h"
#include "tokamak/parallel/distribute.h"
#include "tokamak/price/machine/machine.h"

#include "rows/row_rules.h"

namespace tokamak {

/// One run in columns of known values. Absent numbers are 0.
struct MeasuredRun {
  int line = 0;    ///< of the file; the header is 1
  int number = 0;  ///< among the rows, from 1
  // Texts as the source spells them.
  std::string source, gpu, model, stated_precision, notes;
  std::string software;     ///< by whose rules it is priced: "nemo", "torchtitan-compiled"
  std::string machine;      ///< "h100-published+nemo": names of machine files; empty: there is none
  std::string family;       ///< "nemo H100 bf16"; rows of one family are judged together
  bool calibrates = false;  ///< constants may be fitted on it

  int64_t num_gpus = 0, num_layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, vocab = 0;
  int64_t seq_len = 0, global_batch = 0, microbatch = 0;  ///< batches in sequences
  int64_t tp = 0, pp = 0, cp = 0, dp = 0;
  int64_t chunks_per_stage = 0;   ///< virtual pipeline; 0 = not stated
  bool one_layer_chunks = false;  ///< if chunks_per_stage is not stated
  int64_t shard_ranks = 0;        ///< ranks that share a copy; 0 = all of dp

  price::Precision precision = price::Precision::kBf16;  ///< of the matmuls of its blocks
  RecomputePolicy recompute;
  Sharding sharding = Sharding::kZero1;
  bool keeps_gathered = false;     ///< weights, from forward to backward
  bool gated_mlp = false;          ///< Llama, Qwen; not GPT, MPT, BLOOM, Nemotron
  bool tied = false;               ///< embedding and head are one weight
  bool pads_logits = true;         ///< of an odd vocabulary
  bool sequence_parallel = false;  ///< stated, whatever its software does otherwise
  bool even_racks = false;         ///< as many nodes of every rack
  bool sizes_by_name = false;      ///< the model's name told some that the source leaves unsaid

  double step_time_s = 0.0;
  double stated_mfu = 0.0;  ///< by the source's own formula; 0 = not stated
  std::string measured_as;  ///< the column that the time was computed from
  std::string skipped;      ///< why the row cannot be priced: the missing column, or what we lack

  int64_t num_microbatches() const { return global_batch / (dp * microbatch); }
};

/// Throws Error if the file cannot be read or has none of the known headers.
std::vector<MeasuredRun> read_measured_rows(const std::filesystem::path& file);

/// Does the same from text; `name` is for errors.
std::vector<MeasuredRun> parse_measured_rows(const std::string& text, const std::string& name);

}  // namespace tokamak
