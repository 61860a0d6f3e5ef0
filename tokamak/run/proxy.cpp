#include "tokamak/run/proxy.h"

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

constexpr int64_t kLeastHead = 8;
constexpr int64_t kMlpUnit = 16;
constexpr int64_t kLeastSeq = 64;
constexpr int64_t kLeastVocab = 256;
constexpr int64_t kMostSteps = 50;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns `value` * to / from, rounded to a multiple of `multiple` that is not 0.
int64_t scaled(int64_t value, int64_t from, int64_t to, int64_t multiple) {
  const int64_t exact = (value * to + from / 2) / from;
  return std::max((exact + multiple / 2) / multiple * multiple, multiple);
}

int64_t power_of_two_below(int64_t value) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

void refuse_lists(const Config& c) {
  const ParallelismConfig& p = c.parallelism;
  const std::pair<const char*, bool> lists[] = {
      {"module_fqns_per_model_part", p.module_fqns_per_model_part.has_value()},
      {"pipeline_parallel_split_points", !p.pipeline_parallel_split_points.empty()},
      {"pipeline_parallel_schedule_csv", !p.pipeline_parallel_schedule_csv.value_or("").empty()}};
  for (const auto& [key, is_set] : lists) {
    TOK_REQUIRE(!is_set,
                "--proxy: parallelism.{} lists layers or microbatches of the whole run, which a "
                "proxy has not; leave it out",
                key);
  }
}

Degrees scaled_degrees(const Degrees& whole, const ProxyLimits& limits) {
  Degrees d;
  constexpr std::array kAxes{&Degrees::tp, &Degrees::pp, &Degrees::cp, &Degrees::dp_shard,
                             &Degrees::dp_replicate};
  for (const auto axis : kAxes) {
    if (whole.*axis > 1 && 2 * d.world() <= limits.num_ranks) d.*axis = 2;
  }
  while (2 * d.world() <= limits.num_ranks) {
    const auto scale = [&](auto axis) {
      const bool can_grow =
          d.*axis > 1 && 2 * d.*axis <= limits.most_per_axis && whole.*axis % (2 * d.*axis) == 0;
      return can_grow ? whole.*axis / d.*axis : 0;
    };
    const auto most =
        *std::ranges::max_element(kAxes, [&](auto a, auto b) { return scale(a) < scale(b); });
    if (scale(most) == 0) break;
    d.*most *= 2;
  }
  return d;
}

// Pipeline stages and their layers. The first and the last stage may hold fewer.
struct Stages {
  int64_t per_rank = 1;
  int64_t layers = 1;  ///< of one that is full
  int64_t missing = 0;
};

Stages stages_of(const Config& c, const Degrees& degrees, int64_t num_layers) {
  if (degrees.pp == 1) return {.layers = num_layers};
  const PipelinePlan plan =
      pipeline_plan(c, degrees, num_layers, batch_sizes(c, degrees).num_microbatches);
  const int64_t num_stages = plan.split.num_stages;
  const ParallelismConfig& p = c.parallelism;
  const int64_t ends =
      p.pipeline_parallel_first_stage_less_layers + p.pipeline_parallel_last_stage_less_layers;
  return {.per_rank = num_stages / degrees.pp,
          .layers = (num_layers + ends + num_stages - 1) / num_stages,
          .missing = ends};
}

void scale_model(const ModelSpec& spec, const Degrees& d, const ProxyLimits& limits, Config& c) {
  ModelConfig& m = c.model;
  const int64_t group = spec.num_heads / spec.num_kv_heads;
  const bool by_heads = c.parallelism.context_parallel_rotate_method == "ulysses";
  const int64_t least_kv =
      std::min(spec.num_kv_heads, std::max<int64_t>(2, d.tp * (by_heads ? d.cp : 1)));
  int64_t dim = spec.dim;
  if (spec.dim > limits.dim) {
    const int64_t unit = group * least_kv;
    // Matmuls in low precision want such multiples on each rank.
    const LowPrecision low = low_precision_of(c);
    const int64_t multiple = std::max(kMlpUnit, low.multiple());
    const int64_t least_head = std::max(kLeastHead, low ? multiple * d.tp / least_kv : 0);
    const int64_t most_head = std::max(least_head, power_of_two_below(spec.head_dim));
    const int64_t head = std::clamp(power_of_two_below(limits.dim / unit), least_head, most_head);
    const int64_t heads = unit * std::max<int64_t>(1, limits.dim / (unit * head));
    dim = heads * head;
    m.dim = dim;
    m.heads = heads;
    m.kv_heads = heads / group;
    m.head_dim = head;
    m.mlp_dim = scaled(spec.mlp_dim, spec.dim, dim, multiple * d.tp);
  }
  m.vocab = std::max(kLeastVocab, scaled(spec.vocab_size, spec.dim, dim, 64 * d.tp));
  const int64_t unit = 16 * d.cp * d.tp;
  const int64_t as_wide = round_up(scaled(c.training.seq_len, spec.dim, dim, 1), unit);
  const int64_t most = std::max(kLeastSeq, round_up(limits.tokens / 2, unit));
  c.training.seq_len = std::min(c.training.seq_len, std::clamp(as_wide, kLeastSeq, most));
}

void scale_layers(const Stages& stages, const Degrees& whole, const Degrees& d,
                  const ProxyLimits& limits, Config& c) {
  ParallelismConfig& p = c.parallelism;
  const int64_t per_stage = std::min(stages.layers, limits.layers_per_stage);
  if (whole.pp > 1 && d.pp == 1) {  // what one rank holds
    c.model.layers = std::min(stages.layers * stages.per_rank, 2 * limits.layers_per_stage);
    return;
  }
  const int64_t num_stages = stages.per_rank * d.pp;
  c.model.layers = std::max<int64_t>(per_stage * num_stages - stages.missing,
                                     std::max<int64_t>(1, num_stages - 2));
  if (d.pp > 1) p.pipeline_parallel_layers_per_stage = per_stage;
}

void scale_batch(const BatchSizes& sizes, const Degrees& whole, const Degrees& d,
                 const ProxyLimits& limits, Config& c) {
  const int64_t sequences =
      std::clamp<int64_t>(limits.tokens / c.training.seq_len, 1, sizes.microbatch);
  const int64_t count = std::clamp((sizes.num_microbatches * d.pp + whole.pp / 2) / whole.pp, d.pp,
                                   limits.microbatches * d.pp);
  c.parallelism.pipeline_parallel_microbatch_size = d.pp > 1 ? sequences : 1;
  c.training.local_batch_size = d.pp > 1 ? sequences * count : sequences;
  c.training.global_batch_size = sequences * count * d.dp();
}

// A proxy reads and writes nothing of the whole run.
void leave_files_alone(Config& c) {
  TrainingConfig& t = c.training;
  t.dataset = "synthetic";
  t.dataset_path.reset();
  t.tokens.reset();
  t.epochs.reset();
  t.steps = std::min(t.steps, kMostSteps);
  c.validation.enable = false;
  c.checkpoint.enable = false;
  c.checkpoint.initial_load_path.reset();
  c.checkpoint.initial_load_in_hf = false;
}

std::string kept_text(const Config& c, const Degrees& whole, const ModelSpec& spec) {
  std::vector<std::string> kept;
  if (whole.pp > 1) kept.push_back(c.parallelism.pipeline_parallel_schedule);
  if (whole.dp() * whole.cp > 1) kept.push_back(c.parallelism.data_parallel_type);
  kept.push_back(fmt::format("recompute {}", recompute_text(c.activation_checkpoint)));
  kept.push_back(fmt::format("compute in {}", c.training.mixed_precision_param));
  for (const std::string& converter : c.model.converters) {
    kept.push_back(converter);
    kept.back() += fmt::format(" {}", low_precision_of(c).recipe());
  }
  kept.push_back(fmt::format("{} heads a key-value head", spec.num_heads / spec.num_kv_heads));
  return fmt::format("{}", fmt::join(kept, ", "));
}

std::vector<ScaledSize> sizes_of(const Config& whole, const Degrees& from, const Stages& stages,
                                 const Config& c, const Degrees& to, const Stages& own) {
  std::vector<ScaledSize> sizes;
  const auto add = [&](std::string what, int64_t before, int64_t after) {
    sizes.push_back({std::move(what), fmt::format("{}", before), fmt::format("{}", after)});
  };
  const std::pair<const char*, int64_t Degrees::*> axes[] = {
      {"pp", &Degrees::pp},
      {"dp_replicate", &Degrees::dp_replicate},
      {"dp_shard", &Degrees::dp_shard},
      {"cp", &Degrees::cp},
      {"tp", &Degrees::tp}};
  add("ranks", from.world(), to.world());
  for (const auto& [name, axis] : axes) {
    if (from.*axis > 1) add(fmt::format("  {}", name), from.*axis, to.*axis);
  }
  if (from.pp > 1) {
    add("stages per rank", stages.per_rank, own.per_rank);
    add("layers per stage", stages.layers, own.layers);
  }
  const ModelSpec a = spec_of(whole);
  const ModelSpec b = spec_of(c);
  add("layers", a.num_layers, b.num_layers);
  add("dim", a.dim, b.dim);
  add("mlp_dim", a.mlp_dim, b.mlp_dim);
  add("heads", a.num_heads, b.num_heads);
  add("kv_heads", a.num_kv_heads, b.num_kv_heads);
  add("vocab", a.vocab_size, b.vocab_size);
  add("parameters", count_parameters(a).total, count_parameters(b).total);
  const BatchSizes before = batch_sizes(whole, from);
  const BatchSizes after = batch_sizes(c, to);
  add("seq_len", whole.training.seq_len, c.training.seq_len);
  add("microbatch", before.microbatch, after.microbatch);
  add("microbatches", before.num_microbatches, after.num_microbatches);
  add("global batch", before.global, after.global);
  return sizes;
}

}  // namespace

ProxyLimits gpu_proxy_limits(int64_t num_gpus, int64_t memory_bytes) {
  constexpr double kLarge = 60.0;
  constexpr double kMiddle = 20.0;
  const double size = gib(memory_bytes);
  return {.num_ranks = num_gpus,
          .most_per_axis = num_gpus,
          .dim = size >= kLarge    ? 2048
                 : size >= kMiddle ? 1024
                                   : 512,
          .layers_per_stage = 16,
          .tokens = 16384};
}

Proxy scale_down(const Config& whole, const Degrees& degrees, const ProxyLimits& limits) {
  refuse_lists(whole);
  const ModelSpec spec = spec_of(whole);
  const Stages stages = stages_of(whole, degrees, spec.num_layers);
  Proxy proxy{
      .config = whole, .degrees = scaled_degrees(degrees, limits), .most_ranks = limits.num_ranks};
  const Degrees& d = proxy.degrees;
  Config& c = proxy.config;
  ParallelismConfig& p = c.parallelism;
  p.pipeline_parallel_degree = d.pp;
  p.data_parallel_replicate_degree = d.dp_replicate;
  p.data_parallel_shard_degree = d.dp_shard;
  p.context_parallel_degree = d.cp;
  p.tensor_parallel_degree = d.tp;
  scale_model(spec, d, limits, c);
  scale_layers(stages, degrees, d, limits, c);
  scale_batch(batch_sizes(whole, degrees), degrees, d, limits, c);
  leave_files_alone(c);
  validate(c, d.world());
  proxy.sizes = sizes_of(whole, degrees, stages, c, d, stages_of(c, d, spec_of(c).num_layers));
  proxy.kept = kept_text(whole, degrees, spec);
  return proxy;
}

std::string proxy_text(const Proxy& proxy, const std::string& title) {
  size_t width = title.size();
  for (const ScaledSize& size : proxy.sizes) width = std::max(width, size.whole.size());
  std::string text = fmt::format("{:<18}{:>{}}{:>14}\n", "scaled", title, width, "proxy");
  for (const ScaledSize& size : proxy.sizes)
    text += fmt::format("{:<18}{:>{}}{:>14}\n", size.what, size.whole, width, size.proxy);
  return text + fmt::format("kept: {}\n", proxy.kept);
}

}  // namespace tokamak
