#include "tokamak/evidence/row_run.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/evidence/row_words.h"
#include "tokamak/pipeline/schedules.h"
#include "tokamak/pipeline/stage_split.h"

namespace tokamak {
namespace {

// Stages of one rank. Where a source of Megatron's family states none beside a pipeline, it is the
// most that the layers allow, as in the recipes of those sources that do state it.
int64_t chunks_of(const MeasuredRow& row) {
  if (row.pp == 1) return 1;
  if (row.chunks_per_stage > 0) return row.chunks_per_stage;
  if (software_of(row) != "nemo") return 1;
  const int64_t even = row.num_layers % row.pp == 0 ? row.num_layers : row.num_layers + 2;
  return std::max<int64_t>(even / row.pp, 1);
}

struct DataMesh {
  int64_t replicate = 1;
  int64_t shard = 1;
};

// All shard over all ranks of dp that do not say it of fewer.
DataMesh data_mesh(const MeasuredRow& row) {
  const int64_t shard = sharding_named(row.sharding).ranks;
  if (shard == 0 || shard >= row.dp) return {.shard = row.dp};
  TOK_REQUIRE(row.dp % shard == 0, "{}: does not divide dp {}", row.sharding, row.dp);
  return {.replicate = row.dp / shard, .shard = shard};
}

// Unstated: Megatron-LM before its distributed optimizer sums gradients alone.
Sharding sharding_of(const MeasuredRow& row) {
  const std::string software = software_of(row);
  const bool is_old = software == "megatron" || software == "vtrain";
  return sharding_named(row.sharding).sharding.value_or(is_old ? Sharding::kDdp : Sharding::kZero1);
}

RecomputePolicy recompute_of(const MeasuredRow& row) {
  using Mode = RecomputePolicy::Mode;
  const RecomputeWord word = recompute_named(row.recompute).value_or(RecomputeWord::kNone);
  if (word == RecomputeWord::kFull) return {.mode = Mode::kFull};
  if (word == RecomputeWord::kSelectiveLayers)
    return {.mode = Mode::kSelectiveLayers, .every_nth_block = 2};
  const std::string software = software_of(row);
  if (!mentions(software, "torchtitan") && software != "tokamak")
    return {};  // attention alone, which no backward keeps
  if (word == RecomputeWord::kSelective)
    return {.mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}};
  return {};
}

void add_pipeline(const MeasuredRow& row, DistributeOptions& d) {
  const auto ranks = static_cast<int>(row.pp);
  const auto chunks = static_cast<int>(chunks_of(row));
  constexpr int64_t kMostPassages = int64_t{1} << 17;  // planned within seconds
  TOK_REQUIRE(row.num_microbatches() <= kMostPassages / (ranks * chunks),
              "pp {} x vp {} x {} microbatches: wanted a product of at most {}", ranks, chunks,
              row.num_microbatches(), kMostPassages);
  const std::string schedule = chunks > 1 ? "Interleaved1F1B" : "1F1B";
  // Embedding and head count as a layer each where the layers alone do not deal out evenly.
  const int less = row.num_layers % (row.pp * chunks) == 0 ? 0 : 1;
  const StageSplit split = split_stages({.num_layers = static_cast<int>(row.num_layers),
                                         .num_ranks = ranks,
                                         .schedule = schedule,
                                         .num_stages = ranks * chunks,
                                         .first_stage_less_layers = less,
                                         .last_stage_less_layers = less});
  d.stage_of_module = stage_of_module(split);
  d.pipeline = make_schedule(schedule, ranks, chunks, static_cast<int>(row.num_microbatches()));
}

}  // namespace

ModelSpec spec_of_row(const MeasuredRow& row) {
  const std::string name = has_gated_mlp(row) ? "llama" : "gpt2";
  return {.family = &family_of(name),
          .name = name,
          .flavor = row.model,
          .vocab_size = row.vocab,
          .dim = row.hidden,
          .num_layers = row.num_layers,
          .num_heads = row.heads,
          .num_kv_heads = row.kv_heads,
          .head_dim = row.hidden / row.heads,
          .mlp_dim = row.ffn,
          .max_seq_len = row.seq_len,
          .tied = imitation_of(row).tied};
}

RunShape shape_of_row(const MeasuredRow& row, int pp_rank) {
  TOK_CHECK(row.skipped.empty(), "line {}: {}", row.line, row.skipped);
  const DataMesh data = data_mesh(row);
  RunShape shape;
  shape.training.batch = row.microbatch;
  shape.training.seq_len = row.seq_len;
  shape.training.compute = DType::kBF16;
  shape.recompute = recompute_of(row);
  DistributeOptions& d = shape.distribute;
  d.mesh.degrees = {static_cast<int>(row.pp), static_cast<int>(data.replicate),
                    static_cast<int>(data.shard), static_cast<int>(row.cp),
                    static_cast<int>(row.tp)};
  d.rank = pp_rank * static_cast<int>(row.num_gpus / row.pp);
  d.num_microbatches = row.num_microbatches();
  d.sharding = sharding_of(row);
  if (mentions(plain_word(row.sharding), "shardgradop")) d.reshard = Reshard::kNever;
  d.async_tp = row.tp > 1 && mentions(row.notes, "asyncTP=yes");
  d.context = ContextMethod::kRing;
  const Imitation imitation = imitation_of(row);
  d.merge_products = imitation.merge_products;
  d.sequence_parallel = !imitation.whole_sequences;
  d.keep_copies = imitation.keep_copies;
  shape.training.pads_logits = imitation.pads_logits;
  if (row.pp > 1) add_pipeline(row, d);
  return shape;
}

Imitation imitation_of(const MeasuredRow& row) {
  const std::string software = software_of(row);
  const bool is_vtrain = software == "vtrain";
  const bool is_megatron = software == "megatron";
  return {.tied = is_vtrain || is_megatron || software == "mosaic",
          .merge_products = !mentions(software, "torchtitan"),
          .pads_logits = !is_vtrain,
          .whole_sequences =
              is_vtrain || (is_megatron && !mentions(row.recompute, "sequence-parallel"))};
}

std::string machine_of_row(const MeasuredRow& row) {
  if (!row.machine.empty()) return row.machine;
  if (row.source == "vTrain") return "a100-80-cloud";  // 12.5 GB/s of network, in its own config
  if (row.source.starts_with("bigscience-")) return "a100-80-opa";  // its jz/hpc-specs.md
  return machine_of_gpu(row.gpu);
}

price::Precision precision_of_row(const MeasuredRow& row) {
  return precision_named(row.precision).value_or(price::Precision::kBf16);
}

std::string plan_key(const MeasuredRow& row) {
  const ModelSpec spec = spec_of_row(row);
  const RunShape shape = shape_of_row(row, 0);
  return fmt::format("{} {} {} {} {} {} {} {} | {} {} {} | {} | {} {} {} {} | {} {} {} {} | {} {}",
                     spec.name, spec.vocab_size, spec.dim, spec.num_layers, spec.num_heads,
                     spec.num_kv_heads, spec.mlp_dim, spec.tied, row.microbatch, row.seq_len,
                     row.num_microbatches(), fmt::join(shape.distribute.mesh.degrees, " "),
                     chunks_of(row), static_cast<int>(shape.distribute.sharding),
                     static_cast<int>(shape.distribute.reshard), shape.distribute.async_tp,
                     static_cast<int>(shape.recompute.mode), shape.recompute.every_nth_block,
                     shape.recompute.saved_ops.size(), shape.recompute.halved_ops.size(),
                     software_of(row), shape.distribute.sequence_parallel);
}

PlannedRow::PlannedRow(const MeasuredRow& row, int place)
    : planned_(spec_of_row(row), shape_of_row(row, 0), {.backend = "gpu", .arch = 90},
               PlannedRanks::Which::kStages, place) {
  for (const PlannedRanks::Rank& r : planned_.ranks())
    ranks_.push_back({.plan = r.plan, .rank = r.rank});
}

}  // namespace tokamak
