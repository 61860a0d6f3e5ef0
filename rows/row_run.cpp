#include "rows/row_run.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/pipeline/schedules.h"
#include "tokamak/pipeline/stage_split.h"
#include "tokamak/price/run/priced_run.h"

namespace tokamak {
namespace {

// Returns the number of stages per rank.
int64_t chunks_of(const MeasuredRun& run) {
  if (run.pp == 1) return 1;
  if (run.chunks_per_stage > 0 || !run.one_layer_chunks)
    return std::max<int64_t>(run.chunks_per_stage, 1);
  const int64_t even = run.num_layers % run.pp == 0 ? run.num_layers : run.num_layers + 2;
  return std::max<int64_t>(even / run.pp, 1);
}

struct DataMesh {
  int64_t replicate = 1;
  int64_t shard = 1;
};

// Runs shard over all ranks of dp unless they state fewer.
DataMesh data_mesh(const MeasuredRun& run) {
  const int64_t shard = run.shard_ranks;
  if (shard == 0 || shard >= run.dp) return {.shard = run.dp};
  TOK_REQUIRE(run.dp % shard == 0, "shards of {} ranks do not divide dp {}", shard, run.dp);
  return {.replicate = run.dp / shard, .shard = shard};
}

void add_pipeline(const MeasuredRun& run, DistributeOptions& d) {
  const auto ranks = static_cast<int>(run.pp);
  const auto chunks = static_cast<int>(chunks_of(run));
  constexpr int64_t kMostPassages = int64_t{1} << 17;  // planned within seconds
  TOK_REQUIRE(run.num_microbatches() <= kMostPassages / (ranks * chunks),
              "pp {} x vp {} x {} microbatches: wanted a product of at most {}", ranks, chunks,
              run.num_microbatches(), kMostPassages);
  const std::string schedule = chunks > 1 ? "Interleaved1F1B" : "1F1B";
  // Embedding and head count as one layer each if the layers alone do not split evenly.
  const int less = run.num_layers % (run.pp * chunks) == 0 ? 0 : 1;
  const StageSplit split = split_stages({.num_layers = static_cast<int>(run.num_layers),
                                         .num_ranks = ranks,
                                         .schedule = schedule,
                                         .num_stages = ranks * chunks,
                                         .first_stage_less_layers = less,
                                         .last_stage_less_layers = less});
  d.stage_of_module = stage_of_module(split);
  d.pipeline = make_schedule(schedule, ranks, chunks, static_cast<int>(run.num_microbatches()));
}

}  // namespace

ModelSpec spec_of_row(const MeasuredRun& run) {
  const std::string name = run.gated_mlp ? "llama" : "gpt2";
  return {.family = &family_of(name),
          .name = name,
          .flavor = run.model,
          .vocab_size = run.vocab,
          .dim = run.hidden,
          .num_layers = run.num_layers,
          .num_heads = run.heads,
          .num_kv_heads = run.kv_heads,
          .head_dim = run.hidden / run.heads,
          .mlp_dim = run.ffn,
          .max_seq_len = run.seq_len,
          .tied = run.tied};
}

price::Software software_of_row(const MeasuredRun& run, const price::Machine& machine) {
  price::Software software = machine.software;
  if (run.sequence_parallel) software.whole_sequences = 0;
  return software;
}

RunShape shape_of_row(const MeasuredRun& run, const price::Software& software, int pp_rank) {
  TOK_CHECK(run.skipped.empty(), "line {}: {}", run.line, run.skipped);
  const DataMesh data = data_mesh(run);
  RunShape shape;
  shape.training.batch = run.microbatch;
  shape.training.seq_len = run.seq_len;
  shape.training.compute = DType::kBF16;
  shape.training.pads_logits = run.pads_logits;
  shape.recompute = run.recompute;
  DistributeOptions& d = shape.distribute;
  d.mesh.degrees = {static_cast<int>(run.pp), static_cast<int>(data.replicate),
                    static_cast<int>(data.shard), static_cast<int>(run.cp),
                    static_cast<int>(run.tp)};
  d.rank = pp_rank * static_cast<int>(run.num_gpus / run.pp);
  d.num_microbatches = run.num_microbatches();
  d.sharding = run.sharding;
  if (run.keeps_gathered) d.reshard = Reshard::kNever;
  d.context = ContextMethod::kRing;
  apply_software(software, shape);
  if (run.pp > 1) add_pipeline(run, d);
  return shape;
}

double causal_flops_per_token(const MeasuredRun& run) {
  const auto h = static_cast<double>(run.hidden);
  const double kv = h * static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  const double mlp = (run.gated_mlp ? 3.0 : 2.0) * h * static_cast<double>(run.ffn);
  const auto layers = static_cast<double>(run.num_layers);
  const double products = layers * (2.0 * h * (h + kv) + mlp) + h * static_cast<double>(run.vocab);
  return 6.0 * products + 6.0 * layers * static_cast<double>(run.seq_len) * h;
}

// Counts recompute, attention without a mask and one MLP of 4 hidden without a gate.
double hardware_flops_per_step(const MeasuredRun& run) {
  const auto h = static_cast<double>(run.hidden);
  const auto s = static_cast<double>(run.seq_len);
  const auto layers = static_cast<double>(run.num_layers);
  return 96.0 * static_cast<double>(run.global_batch) * s * layers * h * h *
         (1.0 + s / (6.0 * h) + static_cast<double>(run.vocab) / (16.0 * layers * h));
}

std::string plan_key(const MeasuredRun& run, const price::Machine& machine) {
  const price::Software software = software_of_row(run, machine);
  const std::array<int64_t, 17> sizes = {run.num_layers,
                                         run.hidden,
                                         run.ffn,
                                         run.heads,
                                         run.kv_heads,
                                         run.vocab,
                                         run.seq_len,
                                         run.microbatch,
                                         run.dp,
                                         run.cp,
                                         run.tp,
                                         run.pp,
                                         chunks_of(run),
                                         run.num_microbatches(),
                                         run.shard_ranks,
                                         run.recompute.every_nth_block,
                                         machine.device.arch};
  return fmt::format("{} {} {} {} {} {} {} {} {}", fmt::join(sizes, " "),
                     static_cast<int>(run.recompute.mode), run.recompute.saved_ops.size(),
                     static_cast<int>(run.sharding), run.keeps_gathered, run.gated_mlp, run.tied,
                     run.pads_logits,
                     fmt::format("{}{}{}", software.merges_matmuls, software.keeps_copies,
                                 software.whole_sequences));
}

PlannedRow::PlannedRow(const MeasuredRun& run, const price::Machine& machine, int place)
    : planned_(spec_of_row(run), shape_of_row(run, software_of_row(run, machine), 0),
               {.backend = "gpu", .arch = machine.device.arch}, PlannedRanks::Which::kStages,
               place) {
  for (const PlannedRanks::Rank& r : planned_.ranks())
    ranks_.push_back({.plan = r.plan, .rank = r.rank});
}

}  // namespace tokamak
