#include "tokamak/run/mesh_options.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/pipeline/schedule_csv.h"
#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

Sharding sharding_of(const std::string& type, const Degrees& d) {
  if (type == "ddp") return Sharding::kDdp;
  if (type == "zero1") return Sharding::kZero1;
  if (type == "zero2") return Sharding::kZero2;
  const bool shards = d.dp_shard * d.cp > 1;
  return d.dp_replicate > 1 && !shards ? Sharding::kDdp : Sharding::kFsdp;
}

Reshard reshard_of(const std::string& policy) {
  if (policy == "always") return Reshard::kAlways;
  return policy == "never" ? Reshard::kNever : Reshard::kDefault;
}

GradStore grad_store_of(const std::string& store) {
  if (store == "full") return GradStore::kFull;
  return store == "sharded" ? GradStore::kSharded : GradStore::kAuto;
}

ContextMethod context_method_of(const std::string& method) {
  if (method == "alltoall") return ContextMethod::kRing;
  return method == "ulysses" ? ContextMethod::kUlysses : ContextMethod::kAllGather;
}

}  // namespace

Mesh mesh_of(const Degrees& d) {
  return {.degrees = {static_cast<int>(d.pp), static_cast<int>(d.dp_replicate),
                      static_cast<int>(d.dp_shard), static_cast<int>(d.cp),
                      static_cast<int>(d.tp)}};
}

std::string mesh_text(const Degrees& degrees) {
  const Mesh mesh = mesh_of(degrees);
  std::vector<std::string> parts;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    const auto axis = static_cast<MeshAxis>(a);
    if (mesh.degree(axis) > 1)
      parts.push_back(fmt::format("{} {}", name_of(axis), mesh.degree(axis)));
  }
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " x "));
}

DistributeOptions distribute_options(const Config& config, const Degrees& degrees, int rank) {
  const ParallelismConfig& p = config.parallelism;
  TOK_CHECK(rank >= 0 && rank < degrees.world(), "rank {} of {}", rank, degrees.world());
  return {.mesh = mesh_of(degrees),
          .rank = rank,
          .sharding = sharding_of(p.data_parallel_type, degrees),
          .reshard = reshard_of(p.fsdp_reshard_after_forward),
          .grad_store = grad_store_of(config.training.grad_store),
          .loss_parallel = !p.disable_loss_parallel,
          .gather_again = config.activation_checkpoint.gather_again,
          .gather_again_with_head = config.activation_checkpoint.gather_again_with_head,
          .covers_collectives = p.cover_tensor_parallel_collectives,
          .covers_forwards = p.pipeline_parallel_join_forwards,
          .covers_context = p.cover_context_parallel_collectives,
          .context = context_method_of(p.context_parallel_rotate_method),
          .head_and_tail = p.context_parallel_load_balancer.has_value(),
          .receives_ahead = static_cast<int>(p.pipeline_parallel_receives_ahead),
          .overlaps_gathers = p.pipeline_parallel_overlap_gathers};
}

bool keeps_full_gradients(const std::string& data_parallel_type, const std::string& grad_store,
                          const Degrees& degrees, int64_t num_microbatches) {
  return keeps_full_gradients({.mesh = mesh_of(degrees),
                               .num_microbatches = num_microbatches,
                               .sharding = sharding_of(data_parallel_type, degrees),
                               .grad_store = grad_store_of(grad_store)});
}

BatchSizes batch_sizes(const Config& config, const Degrees& degrees) {
  BatchSizes sizes{.global = global_batch_size(config, degrees), .dp = degrees.dp()};
  sizes.microbatch = degrees.pp > 1 ? config.parallelism.pipeline_parallel_microbatch_size
                                    : config.training.local_batch_size;
  TOK_CHECK(sizes.global % (sizes.microbatch * sizes.dp) == 0, "{} sequences in {} of {}",
            sizes.global, sizes.dp, sizes.microbatch);
  sizes.num_microbatches = sizes.global / (sizes.microbatch * sizes.dp);
  const TrainingConfig& t = config.training;
  const bool is_global = t.global_batch_size != -1;
  TOK_REQUIRE(sizes.num_microbatches <= kMostMicrobatches,
              "{} = {}: wanted at most {} microbatches ({} sequences on each of {} data-parallel "
              "ranks), got {}",
              is_global ? "training.global_batch_size" : "training.local_batch_size",
              is_global ? t.global_batch_size : t.local_batch_size, kMostMicrobatches,
              sizes.microbatch, sizes.dp, sizes.num_microbatches);
  return sizes;
}

PipelinePlan pipeline_plan(const Config& config, const Degrees& degrees, int64_t num_layers,
                           int64_t num_microbatches) {
  const ParallelismConfig& p = config.parallelism;
  const auto num_ranks = static_cast<int>(degrees.pp);
  const auto count = static_cast<int>(num_microbatches);
  const auto accumulation = static_cast<int>(
      num_microbatches * p.pipeline_parallel_microbatch_size / config.training.local_batch_size);
  PipelinePlan plan;
  SplitRequest request{
      .num_layers = static_cast<int>(num_layers),
      .num_ranks = num_ranks,
      .schedule = p.pipeline_parallel_schedule,
      .module_fqns_per_model_part = p.module_fqns_per_model_part,
      .split_points = p.pipeline_parallel_split_points,
      .first_stage_less_layers = static_cast<int>(p.pipeline_parallel_first_stage_less_layers),
      .last_stage_less_layers = static_cast<int>(p.pipeline_parallel_last_stage_less_layers)};
  if (p.pipeline_parallel_layers_per_stage)
    request.layers_per_stage = static_cast<int>(*p.pipeline_parallel_layers_per_stage);
  const std::string csv = p.pipeline_parallel_schedule_csv.value_or("");
  if (csv.empty() || num_ranks == 1) {
    plan.split = split_stages(request);
    const std::string name = num_ranks == 1 ? "1F1B" : p.pipeline_parallel_schedule;
    // A schedule that holds all microbatches at once runs one local batch, then the next.
    const int rounds = schedule_kind(name).holds_all ? std::max(accumulation, 1) : 1;
    plan.schedule = repeat_schedule(
        make_schedule(name, num_ranks, plan.split.num_stages / num_ranks, count / rounds), rounds);
    return plan;
  }
  plan.schedule = parse_schedule_csv(read_file(csv, kSmallFileBytes), csv);
  const PipelineSchedule& s = plan.schedule;
  TOK_REQUIRE(s.num_ranks == num_ranks,
              "parallelism.pipeline_parallel_schedule_csv = {}: {} rows, but "
              "parallelism.pipeline_parallel_degree = {}",
              csv, s.num_ranks, num_ranks);
  TOK_REQUIRE(count % s.num_microbatches == 0,
              "parallelism.pipeline_parallel_schedule_csv = {}: {} microbatches, but a step has {} "
              "(of parallelism.pipeline_parallel_microbatch_size = {} sequences)",
              csv, s.num_microbatches, count, p.pipeline_parallel_microbatch_size);
  request.num_stages = s.num_stages();
  plan.split = split_stages(request);
  plan.schedule = repeat_schedule(s, count / s.num_microbatches);
  return plan;
}

}  // namespace tokamak
