#include "tokamak/search/search_space.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/price/run/priced_run.h"

namespace tokamak {
namespace {

constexpr int64_t kLeastTokensOfRank = 1024;  // of a sequence that cp cuts
constexpr int64_t kLargestCp = 16;
// Longer microbatches are no faster.
constexpr int64_t kMostTokensOfMicrobatch = 65536;
constexpr int64_t kLargestMicrobatch = 8;  // sequences, if they are longer
constexpr int kMostStagesPerRank = 8;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d * d != n) all.push_back(n / d);
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool is_power_of_two(int64_t n) {
  return (n & (n - 1)) == 0;
}

struct Schedule {
  std::string name;
  int layers_per_stage = 0;
};

// Returns the schedules, interleaved ones only where their stages differ.
std::vector<Schedule> schedules_for(int64_t num_layers, int64_t pp, int ends) {
  const auto total = static_cast<int>(num_layers) + 2 * ends;
  const auto p = static_cast<int>(pp);
  const auto per_stage = [&](int stages_per_rank) {
    return (total + p * stages_per_rank - 1) / (p * stages_per_rank);
  };
  std::vector<Schedule> all{{"1F1B"}, {"InterleavedZeroBubble", per_stage(1)}};
  int before = per_stage(1);
  for (int v = 2; v <= kMostStagesPerRank; ++v) {
    const int layers = per_stage(v);
    if (layers == before || layers < 1) continue;
    before = layers;
    all.push_back({"Interleaved1F1B", layers});
    all.push_back({"InterleavedZeroBubble", layers});
  }
  if (2 * p - 2 <= num_layers) all.push_back({"ZBVZeroBubble"});
  return all;
}

class Space {
 public:
  Space(const ModelSpec& model, const SearchBounds& bounds) : model_(model), bounds_(bounds) {}

  std::vector<SearchPoint> run() {
    const int64_t n = bounds_.num_gpus;
    for (const int64_t tp : divisors(n)) {
      if (tp > bounds_.largest_tp || model_.num_heads % tp != 0 || model_.mlp_dim % tp != 0)
        continue;
      for (const int64_t cp : divisors(n / tp)) {
        if (cp > kLargestCp || !is_power_of_two(cp)) continue;
        if (cp > 1 && bounds_.seq_len / cp < kLeastTokensOfRank) continue;
        for (const int64_t pp : divisors(n / tp / cp)) {
          if (pp > model_.num_layers) continue;
          add_meshes(pp, cp, tp);
        }
      }
    }
    return std::move(points_);
  }

 private:
  void add_meshes(int64_t pp, int64_t cp, int64_t tp) {
    const int64_t dp = bounds_.num_gpus / (pp * cp * tp);
    if (bounds_.global_batch % dp != 0) return;
    const int64_t largest = std::max(kLargestMicrobatch, kMostTokensOfMicrobatch / bounds_.seq_len);
    for (const int64_t microbatch : divisors(bounds_.global_batch / dp)) {
      if (microbatch > largest) break;
      if (bounds_.global_batch / dp / microbatch > kMostMicrobatches) continue;
      SearchPoint point{.microbatch = microbatch,
                        .num_microbatches = bounds_.global_batch / dp / microbatch};
      for (const int64_t shard : divisors(dp)) {
        point.degrees = {
            .pp = pp, .dp_replicate = dp / shard, .dp_shard = shard, .cp = cp, .tp = tp};
        add_schedules(point);
      }
    }
  }

  void add_schedules(SearchPoint point) {
    const Degrees& d = point.degrees;
    if (d.pp == 1) return add_shardings(point);
    point.sharding = "zero1";
    for (const int ends : {0, 1}) {
      point.ends_weigh = ends;
      for (const Schedule& s : schedules_for(model_.num_layers, d.pp, ends)) {
        point.schedule = s.name;
        point.layers_per_stage = s.layers_per_stage;
        add_recompute(point);
      }
    }
  }

  // With one microbatch zero1 takes as long as zero2, but more memory.
  void add_shardings(SearchPoint point) {
    const auto add = [&](const char* sharding, const char* grad_store) {
      point.sharding = sharding;
      point.grad_store = grad_store;
      add_recompute(point);
    };
    if (point.degrees.dp_shard * point.degrees.cp == 1) return add("ddp", "auto");
    add("fsdp", "auto");
    add("zero2", "auto");
    if (point.num_microbatches == 1) return;
    add("fsdp", "sharded");
    add("zero1", "auto");
  }

  void add_recompute(SearchPoint point) {
    using enum RecomputeChoice;
    for (const RecomputeChoice recompute : {kNone, kSelectiveOps, kFull}) {
      point.recompute = recompute;
      for (const price::Precision linear : bounds_.precisions) {
        point.linear = linear;
        points_.push_back(point);
      }
    }
  }

  const ModelSpec& model_;
  const SearchBounds& bounds_;
  std::vector<SearchPoint> points_;
};

}  // namespace

std::vector<SearchPoint> search_points(const ModelSpec& model, const SearchBounds& bounds) {
  return Space(model, bounds).run();
}

std::span<const std::string_view> chosen_keys() {
  static constexpr std::string_view kKeys[] = {
      "activation_checkpoint.mode",
      "activation_checkpoint.selective_ac_option",
      "parallelism.context_parallel_degree",
      "parallelism.context_parallel_rotate_method",
      "parallelism.data_parallel_replicate_degree",
      "parallelism.data_parallel_shard_degree",
      "parallelism.data_parallel_type",
      "parallelism.module_fqns_per_model_part",
      "parallelism.pipeline_parallel_degree",
      "parallelism.pipeline_parallel_first_stage_less_layers",
      "parallelism.pipeline_parallel_last_stage_less_layers",
      "parallelism.pipeline_parallel_layers_per_stage",
      "parallelism.pipeline_parallel_microbatch_size",
      "parallelism.pipeline_parallel_overlap_gathers",
      "parallelism.pipeline_parallel_receives_ahead",
      "parallelism.pipeline_parallel_schedule",
      "parallelism.pipeline_parallel_schedule_csv",
      "parallelism.pipeline_parallel_split_points",
      "parallelism.tensor_parallel_degree",
      "training.grad_store",
      "training.local_batch_size"};
  return kKeys;
}

Config config_of(const SearchPoint& point, const Config& base, int64_t global_batch) {
  Config c = base;
  const Degrees& d = point.degrees;
  ParallelismConfig& p = c.parallelism;
  p.pipeline_parallel_degree = d.pp;
  p.data_parallel_replicate_degree = d.dp_replicate;
  p.data_parallel_shard_degree = d.dp_shard;
  p.context_parallel_degree = d.cp;
  p.tensor_parallel_degree = d.tp;
  p.data_parallel_type = point.sharding;
  p.module_fqns_per_model_part.reset();
  p.pipeline_parallel_split_points.clear();
  p.pipeline_parallel_schedule_csv = "";
  c.training.global_batch_size = global_batch;
  c.training.local_batch_size = point.microbatch;
  c.training.grad_store = point.grad_store;
  const ParallelismConfig defaults;
  p.pipeline_parallel_microbatch_size = defaults.pipeline_parallel_microbatch_size;
  p.pipeline_parallel_schedule = defaults.pipeline_parallel_schedule;
  p.pipeline_parallel_layers_per_stage = defaults.pipeline_parallel_layers_per_stage;
  p.pipeline_parallel_first_stage_less_layers = defaults.pipeline_parallel_first_stage_less_layers;
  p.pipeline_parallel_last_stage_less_layers = defaults.pipeline_parallel_last_stage_less_layers;
  p.pipeline_parallel_receives_ahead = defaults.pipeline_parallel_receives_ahead;
  p.pipeline_parallel_overlap_gathers = defaults.pipeline_parallel_overlap_gathers;
  p.context_parallel_rotate_method = point.context;
  if (d.pp > 1) {
    p.pipeline_parallel_receives_ahead = kSearchedReceivesAhead;
    p.pipeline_parallel_overlap_gathers = kSearchedOverlapGathers;
    c.training.local_batch_size = global_batch / d.dp();
    p.pipeline_parallel_microbatch_size = point.microbatch;
    p.pipeline_parallel_schedule = point.schedule;
    if (point.layers_per_stage > 0) p.pipeline_parallel_layers_per_stage = point.layers_per_stage;
    p.pipeline_parallel_first_stage_less_layers = point.ends_weigh;
    p.pipeline_parallel_last_stage_less_layers = point.ends_weigh;
  }
  ActivationCheckpointConfig& a = c.activation_checkpoint;
  a.mode = point.recompute == RecomputeChoice::kNone   ? "none"
           : point.recompute == RecomputeChoice::kFull ? "full"
                                                       : "selective";
  a.selective_ac_option = "op";
  if (point.gather_again) {
    a.gather_again = *point.gather_again != GatherAgain::kNone;
    a.gather_again_with_head = *point.gather_again != GatherAgain::kAllButHead;
  }
  p.pipeline_parallel_join_forwards =
      point.joins_forwards.value_or(p.pipeline_parallel_join_forwards);
  const LowPrecisionTrades trades = trades_of(c);
  set_trades(c, {.keeps_transposed = point.keeps_transposed.value_or(trades.keeps_transposed),
                 .long_loss_chunks = point.long_loss_chunks.value_or(trades.long_loss_chunks)});
  set_linear_precision(c, point.linear);
  return c;
}

std::string sharding_text(const SearchPoint& point) {
  return point.sharding + (point.grad_store == "sharded" ? ", gradients sharded" : "");
}

std::string schedule_text(const SearchPoint& point, int num_layers) {
  std::string text;
  if (point.degrees.pp > 1) {
    text = point.schedule;
    if (point.layers_per_stage > 0) {
      const auto p = static_cast<int>(point.degrees.pp);
      const int stages =
          (num_layers + 2 * point.ends_weigh + point.layers_per_stage - 1) / point.layers_per_stage;
      const int v = (stages + p - 1) / p;
      if (v > 1) text += fmt::format(" of {} stages a rank", v);
    }
    text += ", ";
  }
  return text + fmt::format("{} x {} sequence{}", point.num_microbatches, point.microbatch,
                            point.microbatch == 1 ? "" : "s");
}

}  // namespace tokamak
