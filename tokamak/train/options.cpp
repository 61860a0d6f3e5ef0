#include "tokamak/train/options.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/shakespeare.h"
#include "tokamak/train/mesh_batch.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

bool is_text(const std::string& dataset) {
  return dataset == "text" || dataset.rfind("c4", 0) == 0;
}

bool reads_text(const Config& c) {
  return is_text(c.training.dataset) || (c.validation.enable && is_text(c.validation.dataset));
}

// Whether there is no file that might be the run's tokenizer.
bool lacks_tokenizer(const Config& c) {
  const fs::path assets = assets_path(c);
  const bool is_file = path_exists(assets) && !is_folder(assets);
  return reads_text(c) && assets != "bytes" && !is_file && !has_tokenizer(assets);
}

// Sets the rows of a rank, `microbatch` at a time.
void deal_rows(DataOptions& data, const MeshPlace& place, int64_t global, int64_t microbatch) {
  const RowShare rows = row_share(mesh_of(place.degrees), place.rank, global);
  data.global_batch_size = global;
  data.first_row = rows.first_row;
  data.num_rows = rows.num_rows;
  data.rows_per_batch = microbatch;
}

DataOptions data_of(const Config& c, const ModelSpec& spec, const Tokenizer* tokenizer,
                    const MeshPlace& place) {
  DataOptions data{.dataset = c.training.dataset, .path = c.training.dataset_path.value_or("")};
  data.text_column = c.training.text_column;
  data.seq_len = c.training.seq_len;
  const BatchSizes sizes = batch_sizes(c, place.degrees);
  deal_rows(data, place, sizes.global, sizes.microbatch);
  if (c.training.shuffle_seed) data.shuffle_seed = static_cast<uint64_t>(*c.training.shuffle_seed);
  data.seed = static_cast<uint64_t>(seed_of(c));
  data.cache_folder = token_cache_folder(fs::path(c.job.dump_folder) / "token_cache");
  data.tokenizer = tokenizer;
  data.vocab_size = spec.vocab_size;
  return data;
}

std::optional<ValidationOptions> validation_of(const Config& c, const DataOptions& training,
                                               const MeshPlace& place) {
  if (!c.validation.enable) return std::nullopt;
  TOK_REQUIRE(c.validation.dataset != "synthetic" || c.validation.steps >= 0,
              "validation.steps = {}: validation.dataset \"synthetic\" has no end, wanted a number "
              "of batches",
              c.validation.steps);
  ValidationOptions v{.data = training, .freq = c.validation.freq};
  v.data.dataset = c.validation.dataset;
  v.data.path = c.validation.dataset_path.value_or("");
  v.data.seq_len = c.validation.seq_len;
  const int64_t rows = c.validation.local_batch_size;
  deal_rows(v.data, place, rows * place.degrees.dp(), rows);
  v.data.shuffle_seed = std::nullopt;
  v.data.infinite = false;
  if (c.validation.steps >= 0)
    v.data.most_windows = c.validation.steps * global_batch_size(c, place.degrees);
  return v;
}

// Returns what the run starts from, or nothing where that is random.
std::optional<fs::path> initial_weights(const Config& c) {
  if (c.checkpoint.initial_load_path) return *c.checkpoint.initial_load_path;
  if (!c.checkpoint.initial_load_in_hf) return std::nullopt;
  return model_folder(c);
}

CheckpointOptions checkpoint_of(const Config& c, const Tokenizer* tokenizer) {
  const CheckpointConfig& k = c.checkpoint;
  CheckpointOptions o{
      .enable = k.enable, .folder = fs::path(c.job.dump_folder) / k.folder, .interval = k.interval};
  o.stopped_folder = fs::path(c.job.dump_folder) / "stopped";
  o.keep_latest_k = static_cast<int>(k.keep_latest_k);
  o.load_step = k.load_step;
  for (const std::string& part : k.exclude_from_loading) {
    if (part == "model") o.parts.model = false;
    if (part == "optimizer") o.parts.optimizer = false;
    if (part == "lr_scheduler") o.parts.lr_scheduler = false;
    if (part == "dataloader") o.parts.loader = false;
    if (part == "train_state") o.parts.train_state = false;
  }
  o.initial_load_path = initial_weights(c).value_or("");
  o.initial_load_model_only = k.initial_load_model_only;
  o.last_save_model_only = k.last_save_model_only;
  o.last_save_in_hf = k.last_save_in_hf;
  o.export_dtype = dtype_from_name(k.export_dtype, "checkpoint.export_dtype");
  o.first_step = k.enable_first_step_checkpoint;
  o.load_only = k.load_only;
  o.create_seed = k.create_seed_checkpoint;
  o.in_background = k.async_mode != "disabled";
  o.pins_copy = k.async_mode == "async_with_pinned_mem";
  o.max_failed_saves = static_cast<int>(k.max_failed_saves);
  o.retry_s = k.retry_seconds;
  o.timeout = std::chrono::seconds(k.timeout_seconds);
  if (tokenizer != nullptr) o.ids = {.bos = tokenizer->bos(), .eos = tokenizer->eos()};
  if (c.training.dataset == "shakespeare") {
    const TokenizerFiles files = shakespeare_tokenizer_files();
    o.assets = {{"tokenizer.json", files.tokenizer_json},
                {"tokenizer_config.json", files.tokenizer_config}};
  } else if (is_text(c.training.dataset) || has_hf_config(c)) {
    o.assets = tokenizer_files_in(assets_folder(c));
  }
  if (has_hf_config(c)) o.assets.merge(generation_config_in(model_folder(c)));
  return o;
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_of(const Config& c) {
  if (c.training.dataset == "shakespeare") return shakespeare_tokenizer();
  return reads_text(c) ? load_tokenizer(assets_path(c)) : nullptr;
}

std::optional<std::string> fit_vocab(Config& c) {
  const ModelConfig& m = c.model;
  const bool is_own =
      m.layers || m.dim || m.heads || m.kv_heads || m.head_dim || m.mlp_dim || m.window;
  if (!is_own || m.vocab || initial_weights(c) || !has_model(c) || lacks_tokenizer(c))
    return std::nullopt;
  const auto tokenizer = tokenizer_of(c);
  if (tokenizer == nullptr || tokenizer->vocab_size() <= spec_of(c).vocab_size) return std::nullopt;
  c.model.vocab = tokenizer->vocab_size();
  return fmt::format("model.vocab = {}: taken from the tokenizer, which has more ids than {} {}",
                     *c.model.vocab, m.name, m.flavor);
}

std::vector<Need> missing_files(const Config& c) {
  std::vector<Need> needs;
  const auto check_data = [&](const std::string& section, const std::string& dataset,
                              const std::optional<std::string>& path) {
    const std::string at = path.value_or("");
    // A dataset that is unknown or has no path is reported among the needs of the config itself.
    const Strings known = capabilities({}).datasets;
    const bool is_known = std::ranges::find(known, dataset) != known.end();
    if (!is_known || dataset == "shakespeare" || dataset == "synthetic" || at.empty()) return;
    std::optional<std::string> reason;
    try {
      reason = missing_data({.dataset = dataset, .path = at});
    } catch (const Error& error) {
      fail("{}.dataset_path: {}", section, error.what());
    }
    if (reason) needs.push_back({.key = section + ".dataset_path", .value = at, .reason = *reason});
  };
  check_data("training", c.training.dataset, c.training.dataset_path);
  if (c.validation.enable)
    check_data("validation", c.validation.dataset, c.validation.dataset_path);
  if (!has_model(c)) {
    needs.push_back({.key = "model.hf_assets_path",
                     .value = c.model.hf_assets_path,
                     .reason = "there is no config.json, which model.flavor = \"hf\" needs"});
  }
  if (lacks_tokenizer(c)) {
    needs.push_back(
        {.key = c.model.tokenizer_path ? "model.tokenizer_path" : "model.hf_assets_path",
         .value = assets_path(c),
         .reason = "there is no tokenizer.json or tokenizer.model"});
  }
  if (const auto weights = initial_weights(c); weights && !path_exists(*weights)) {
    const bool is_named = c.checkpoint.initial_load_path.has_value();
    needs.push_back({.key = is_named ? "checkpoint.initial_load_path" : "model.hf_assets_path",
                     .value = weights->string(),
                     .reason = is_named ? "no such file or folder"
                                        : "no such folder, from which "
                                          "checkpoint.initial_load_in_hf loads the weights"});
  }
  return needs;
}

std::string tracker_of(const MetricsConfig& metrics) {
  if (metrics.tracker != "none") return metrics.tracker;
  return metrics.enable_wandb ? "wandb" : "";
}

TrainerOptions options_of(const Config& c, const Tokenizer* tokenizer, const MeshPlace& place) {
  TrainerOptions o{.model = spec_of(c)};
  o.shape = shape_of(c, o.model, place);
  o.data = data_of(c, o.model, tokenizer, place);
  o.steps = c.training.steps;
  o.epochs = c.training.epochs;
  o.lr = c.optimizer.lr;
  const LrSchedulerConfig& s = c.lr_scheduler;
  o.schedule = {.warmup_steps = s.warmup_steps,
                .total_steps = s.total_steps.value_or(c.training.epochs ? 0 : c.training.steps),
                .decay_ratio = s.decay_ratio,
                .decay_type = s.decay_type == "cosine" ? LrDecay::kCosine
                              : s.decay_type == "sqrt" ? LrDecay::kSqrt
                                                       : LrDecay::kLinear,
                .min_lr_factor = s.min_lr_factor};
  o.validation = validation_of(c, o.data, place);
  o.checkpoint = checkpoint_of(c, tokenizer);
  o.logging.dump_folder = c.job.dump_folder;
  o.logging.log_freq = c.metrics.log_freq;
  o.logging.num_steps = c.training.steps;
  o.logging.of_all_ranks = c.metrics.save_for_all_ranks;
  const std::string tracker = tracker_of(c.metrics);
  TOK_REQUIRE(tracker.empty() || c.metrics.command.empty(),
              "metrics.command and the tracker {} are both set: wanted one of them", tracker);
  o.logging.command =
      tracker.empty() ? c.metrics.command : "exec python3 -m tokamak.track " + tracker;
  if (c.metrics.enable_tensorboard) o.logging.tensorboard_folder = c.metrics.save_tb_folder;
  const fs::path dump = c.job.dump_folder;
  if (c.profiling.enable_profiling) {
    o.profiling.traces_folder = dump / c.profiling.save_traces_folder;
    o.profiling.active = c.profiling.profiler_active;
  }
  o.profiling.freq = c.profiling.profile_freq;
  if (c.profiling.enable_memory_snapshot)
    o.profiling.memory_folder = dump / c.profiling.save_memory_snapshot_folder;
  o.guard = {
      .steps = {.on_nonfinite = bad_step_policy(c.training.on_nonfinite, "training.on_nonfinite"),
                .on_spike = bad_step_policy(c.training.on_spike, "training.on_spike"),
                .spike_factor = c.training.spike_factor},
      .slow_ranks = {.factor = c.metrics.slow_rank_factor},
      .check_replicas_every = c.training.check_replicas_every,
      .rolls_divergent_back = c.training.on_divergent_replicas == "rollback"};
  o.config_digest = config_digest(c);
  for (auto& [key, value] : key_values(c)) o.agreement.push_back({key, value});
  o.checkpoint.keys = learning_keys(key_values(c));
  if (has_hf_config(c)) {
    for (auto& [member, value] : hf_members(o.model))
      o.checkpoint.keys.emplace_back("config.json " + member, value);
  }
  o.init_timeout = std::chrono::seconds(c.comm.init_timeout_seconds);
  o.train_timeout = std::chrono::seconds(c.comm.train_timeout_seconds);
  return o;
}

}  // namespace tokamak
