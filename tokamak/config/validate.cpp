#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"

namespace tokamak {

namespace {

// The limit exceeds any mesh that could exist and keeps products of degrees far from overflow.
constexpr int64_t kMaxRanks = int64_t{1} << 24;

int64_t capped_product(std::initializer_list<int64_t> degrees) {
  int64_t product = 1;
  for (const int64_t degree : degrees)
    product *= std::min(std::max<int64_t>(degree, 1), kMaxRanks / product + 1);
  return product;
}

class Rules {
 public:
  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) errors_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void add(const std::string& error) { errors_.push_back(error); }

  void finish() const {
    if (!errors_.empty()) throw Error(fmt::format("{}", fmt::join(errors_, "\n")));
  }

 private:
  std::vector<std::string> errors_;
};

// Returns ": parallelism.data_parallel_shard_degree 2" for degrees above 1.
std::string data_degrees(const Degrees& d) {
  const std::pair<const char*, int64_t> degrees[] = {{"replicate", d.dp_replicate},
                                                     {"shard", d.dp_shard}};
  std::string text;
  for (const auto& [axis, degree] : degrees) {
    if (degree > 1)
      text += fmt::format("{} parallelism.data_parallel_{}_degree {}", text.empty() ? ":" : ",",
                          axis, degree);
  }
  return text;
}

void check_batches(const Config& c, const Degrees& d, Rules& rules) {
  const TrainingConfig& t = c.training;
  const ParallelismConfig& p = c.parallelism;
  constexpr int64_t kMaxCount = int64_t{1} << 31;
  const int64_t pipelined = p.pipeline_parallel_microbatch_size;
  const ValidationConfig& v = c.validation;
  bool is_sane = true;
  const std::pair<const char*, int64_t> counts[] = {
      {"training.local_batch_size", t.local_batch_size},
      {"training.global_batch_size", t.global_batch_size},
      {"training.seq_len", t.seq_len},
      {"validation.local_batch_size", v.local_batch_size},
      {"validation.seq_len", v.seq_len},
      {"parallelism.pipeline_parallel_microbatch_size", pipelined}};
  for (const auto& [key, value] : counts) {
    rules.require(value <= kMaxCount, "{} = {}: wanted at most {}", key, value, kMaxCount);
    is_sane = is_sane && value <= kMaxCount;
  }
  if (!is_sane) return;
  rules.require(!v.enable || v.local_batch_size * v.seq_len <= kMostTokens,
                "validation.local_batch_size = {}, validation.seq_len = {}: wanted at most {} "
                "tokens in a batch",
                v.local_batch_size, v.seq_len, kMostTokens);
  const bool has_pipeline = d.pp > 1;
  const int64_t microbatch = has_pipeline ? pipelined : t.local_batch_size;
  rules.require(
      microbatch * t.seq_len <= kMostTokens,
      "{} = {}, training.seq_len = {}: wanted at most {} tokens in a microbatch",
      has_pipeline ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size",
      microbatch, t.seq_len, kMostTokens);
  const int64_t per_microstep = t.local_batch_size * d.dp();
  rules.require(t.global_batch_size == -1 || t.global_batch_size % per_microstep == 0,
                "training.global_batch_size: wanted a multiple of {} (training.local_batch_size {} "
                "times {} data-parallel ranks{}), got {}",
                per_microstep, t.local_batch_size, d.dp(), data_degrees(d), t.global_batch_size);
  rules.require(!has_pipeline || t.local_batch_size % microbatch == 0,
                "parallelism.pipeline_parallel_microbatch_size: wanted a divisor of "
                "training.local_batch_size = {}, got {}",
                t.local_batch_size, microbatch);
}

void check_length(const TrainingConfig& t, Rules& rules) {
  rules.require(!t.tokens || parse_token_count(*t.tokens),
                "training.tokens: wanted a number of tokens such as 300M or 20B, got {}",
                t.tokens.value_or(""));
  rules.require(!t.epochs || *t.epochs > 0, "training.epochs: wanted more than 0, got 0");
}

void check_checkpoint(const CheckpointConfig& c, Rules& rules) {
  rules.require(
      c.keep_latest_k != 1,
      "checkpoint.keep_latest_k: wanted 0 (all) or at least 2, got 1: the only checkpoint "
      "would be deleted while the next one is written");
  rules.require(!c.last_save_in_hf || c.last_save_model_only,
                "checkpoint.last_save_in_hf: needs checkpoint.last_save_model_only = true, got "
                "false: a Hugging Face folder holds only weights");
  rules.require(!c.initial_load_in_hf || c.initial_load_model_only,
                "checkpoint.initial_load_in_hf: needs checkpoint.initial_load_model_only = true, "
                "got false: a Hugging Face folder holds only weights");
}

bool is_positive_number(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 9 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return digits && text.find_first_not_of('0') != std::string::npos;
}

constexpr double kMostGiB = 1 << 20;

void check_rest(const Config& c, Rules& rules) {
  const std::string& option = c.activation_checkpoint.selective_ac_option;
  rules.require(
      option == "op" || is_positive_number(option),
      "activation_checkpoint.selective_ac_option: wanted \"op\" or a number of at least 1, "
      "got \"{}\"",
      option);
  rules.require(c.training.offload_above_gib <= kMostGiB,
                "training.offload_above_gib = {}: wanted GiB of one device, at most {}",
                c.training.offload_above_gib, kMostGiB);
  rules.require(c.training.enable_cpu_offload || c.training.offload_above_gib == 0.0 ||
                    c.training.offload_above_gib > kMostGiB,
                "training.offload_above_gib = {}: nothing is offloaded without "
                "training.enable_cpu_offload",
                c.training.offload_above_gib);
  rules.require(c.optimizer.beta1 < 1, "optimizer.beta1: wanted less than 1, got {}",
                c.optimizer.beta1);
  rules.require(c.optimizer.beta2 < 1, "optimizer.beta2: wanted less than 1, got {}",
                c.optimizer.beta2);
  rules.require(!c.model.dropout || *c.model.dropout < 1,
                "model.dropout: wanted less than 1, got 1");
}

// Degrees of 1 are left out, except the sharding degree.
std::string product_text(const ParallelismConfig& p) {
  std::string text;
  const auto add = [&](const char* axis, int64_t degree, bool is_said) {
    if (is_said)
      text += fmt::format("{}parallelism.{}_degree {}", text.empty() ? "" : " x ", axis, degree);
  };
  add("pipeline_parallel", p.pipeline_parallel_degree, p.pipeline_parallel_degree != 1);
  add("data_parallel_replicate", p.data_parallel_replicate_degree,
      p.data_parallel_replicate_degree != 1);
  add("data_parallel_shard", p.data_parallel_shard_degree, true);
  add("context_parallel", p.context_parallel_degree, p.context_parallel_degree != 1);
  add("tensor_parallel", p.tensor_parallel_degree, p.tensor_parallel_degree != 1);
  return text;
}

// `others` is the product of all degrees except the sharding one.
std::string remedy(int64_t others, int64_t world_size) {
  if (world_size % others != 0) return "";
  return fmt::format("; with parallelism.data_parallel_shard_degree {} (or -1, the rest) they fit",
                     world_size / others);
}

}  // namespace

int64_t default_world_size(const Config& config) {
  const ParallelismConfig& p = config.parallelism;
  return capped_product({p.data_parallel_replicate_degree, p.data_parallel_shard_degree,
                         p.tensor_parallel_degree, p.pipeline_parallel_degree,
                         p.context_parallel_degree});
}

Degrees resolve_degrees(const ParallelismConfig& p, int64_t world_size) {
  Degrees d = {.pp = p.pipeline_parallel_degree,
               .dp_replicate = p.data_parallel_replicate_degree,
               .dp_shard = p.data_parallel_shard_degree,
               .cp = p.context_parallel_degree,
               .tp = p.tensor_parallel_degree};
  const int64_t others = capped_product({d.pp, d.dp_replicate, d.cp, d.tp});
  TOK_REQUIRE(capped_product({others, d.dp_shard}) <= kMaxRanks && world_size <= kMaxRanks,
              "{} on {} ranks: wanted a product of at most {}", product_text(p), world_size,
              kMaxRanks);
  if (d.dp_shard != -1) {
    TOK_REQUIRE(d.world() == world_size, "{} = {}, but there are {} ranks{}", product_text(p),
                d.world(), world_size, remedy(others, world_size));
    return d;
  }
  TOK_REQUIRE(world_size >= others && world_size % others == 0,
              "{}: the other degrees make {}, but there are {} ranks, no multiple of that",
              product_text(p), others, world_size);
  d.dp_shard = world_size / others;
  if (p.data_parallel_type == "ddp") {
    d.dp_replicate *= d.dp_shard;
    d.dp_shard = 1;
  }
  return d;
}

int64_t global_batch_size(const Config& config, const Degrees& degrees) {
  const TrainingConfig& t = config.training;
  return t.global_batch_size == -1 ? t.local_batch_size * degrees.dp() : t.global_batch_size;
}

std::optional<int64_t> parse_token_count(std::string_view text) {
  constexpr double kMostRunTokens = 1e18;
  double count = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (code != std::errc()) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1.0},  {"k", 1e3}, {"K", 1e3},
                                                            {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  for (const auto& [name, factor] : kUnits) {
    if (name != suffix) continue;
    const double tokens = std::nearbyint(count * factor);
    if (!(tokens >= 1.0 && tokens <= kMostRunTokens)) return std::nullopt;
    return static_cast<int64_t>(tokens);
  }
  return std::nullopt;
}

void set_steps(Config& config, const Degrees& degrees) {
  TrainingConfig& t = config.training;
  if (!t.tokens) return;
  const int64_t per_step = global_batch_size(config, degrees) * t.seq_len;
  t.steps = (*parse_token_count(*t.tokens) + per_step - 1) / per_step;
}

void validate(const Config& config, int64_t world_size) {
  Rules rules;
  try {
    check_batches(config, resolve_degrees(config.parallelism, world_size), rules);
  } catch (const Error& error) {
    rules.add(error.what());
  }
  check_length(config.training, rules);
  check_checkpoint(config.checkpoint, rules);
  check_rest(config, rules);
  rules.finish();
}

}  // namespace tokamak
