// The configuration of a run: one plain struct, filled from defaults, a TOML file and overrides.
// Names and defaults are torchtitan's (docs/config.md); key_table.cpp describes each field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokamak {

using Strings = std::vector<std::string>;

struct JobConfig {
  std::optional<std::string> config_file;
  std::string dump_folder = "./outputs";
  std::string description = "default job";
  bool print_config = false;
  std::optional<std::string> save_config_file;
  std::string device = "auto";
  std::string cuda_graphs = "auto";
};

struct ProfilingConfig {
  bool enable_profiling = false;
  std::string save_traces_folder = "profile_traces";
  int64_t profile_freq = 10;
  int64_t profiler_active = 1;
  bool enable_memory_snapshot = false;
  std::string save_memory_snapshot_folder = "memory_snapshot";
};

struct MetricsConfig {
  int64_t log_freq = 10;
  bool enable_tensorboard = false;
  bool disable_color_printing = false;
  std::string save_tb_folder = "tb";
  std::string command;
  std::string tracker = "none";
  bool enable_wandb = false;
  bool save_for_all_ranks = false;
  double slow_rank_factor = 1.5;
};

struct ModelConfig {
  std::string name = "llama3";
  std::string flavor = "debugmodel";
  std::string hf_assets_path = "./tests/assets/tokenizer";
  std::optional<std::string> tokenizer_path;
  Strings converters;
  std::string norm_type = "rmsnorm";
  std::optional<double> dropout;
  std::optional<int64_t> layers, dim, heads, kv_heads, head_dim, mlp_dim, vocab, window;
};

struct OptimizerConfig {
  std::string name = "AdamW";
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  Strings no_decay;
  std::optional<std::string> state_dtype;
};

struct LrSchedulerConfig {
  int64_t warmup_steps = 200;
  std::optional<int64_t> total_steps;
  std::optional<double> decay_ratio;
  std::string decay_type = "linear";
  double min_lr_factor = 0.0;
};

struct TrainingConfig {
  std::string dataset = "shakespeare";
  std::optional<std::string> dataset_path;
  std::string text_column = "text";
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t seq_len = 2048;
  double max_norm = 1.0;
  int64_t steps = 10000;
  std::optional<std::string> tokens;
  std::optional<double> epochs;
  bool enable_cpu_offload = false;
  double offload_above_gib = 0.0;
  std::string dtype = "float32";
  std::string mixed_precision_param = "bfloat16";
  std::string mixed_precision_reduce = "float32";
  std::optional<int64_t> shuffle_seed;
  int64_t threads = 0;
  std::string grad_store = "auto";
  std::string on_nonfinite = "stop";
  std::string on_spike = "warn";
  double spike_factor = 10.0;
  int64_t check_replicas_every = 100;
  std::string on_divergent_replicas = "stop";
};

struct ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;
  std::string data_parallel_type = "fsdp";
  std::string fsdp_reshard_after_forward = "default";
  std::string copy_engine_all_gather = "auto";
  int64_t tensor_parallel_degree = 1;
  bool disable_loss_parallel = false;
  bool cover_tensor_parallel_collectives = true;
  bool cover_context_parallel_collectives = true;
  int64_t pipeline_parallel_degree = 1;
  std::optional<std::vector<Strings>> module_fqns_per_model_part;
  Strings pipeline_parallel_split_points;
  int64_t pipeline_parallel_first_stage_less_layers = 1;
  int64_t pipeline_parallel_last_stage_less_layers = 1;
  std::optional<int64_t> pipeline_parallel_layers_per_stage;
  std::string pipeline_parallel_schedule = "1F1B";
  std::optional<std::string> pipeline_parallel_schedule_csv = "";
  int64_t pipeline_parallel_microbatch_size = 1;
  int64_t pipeline_parallel_receives_ahead = 1;
  bool pipeline_parallel_overlap_gathers = false;
  bool pipeline_parallel_join_forwards = false;
  int64_t context_parallel_degree = 1;
  std::optional<std::string> context_parallel_load_balancer = "headtail";
  std::string context_parallel_rotate_method = "allgather";
};

struct CheckpointConfig {
  bool enable = false;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only = true;
  bool initial_load_in_hf = false;
  bool last_save_model_only = false;
  bool last_save_in_hf = false;
  std::string export_dtype = "float32";
  std::string async_mode = "disabled";
  int64_t max_failed_saves = 3;
  double retry_seconds = 10.0;
  int64_t timeout_seconds = 60;
  int64_t keep_latest_k = 10;
  int64_t load_step = -1;
  Strings exclude_from_loading;
  bool enable_first_step_checkpoint = false;
  bool create_seed_checkpoint = false;
  bool load_only = false;
};

struct ActivationCheckpointConfig {
  std::string mode = "selective";
  std::string selective_ac_option = "2";
  bool emit_on_backward = true;
  bool gather_again = false;
  bool gather_again_with_head = true;
  double memory_budget = 0.5;
};

struct Float8LinearConfig {
  bool enable_fsdp_float8_all_gather = false;
  std::optional<std::string> recipe_name;
  Strings filter_fqns;
  bool emulate = false;
  std::string round_scales_to_power_of_2 = "auto";
  std::string scales_per = "product";
  Strings fast_accum = {"output"};
  std::optional<std::string> grad_dtype;
  int64_t amax_history_len = 1024;
  std::string amax_compute_algo = "max";
  int64_t margin = 0;
  int64_t bf16_layers_at_start = 0;
  int64_t bf16_layers_at_end = 0;
  bool keep_transposed_weights = false;
  bool long_loss_chunks = false;
};

struct MxLinearConfig {
  std::string recipe_name = "mxfp8_cublas";
  Strings filter_fqns = {"output"};
  bool emulate = false;
};

struct QuantizeLinearConfig {
  Float8LinearConfig float8;
  MxLinearConfig mx;
};

struct QuantizeConfig {
  QuantizeLinearConfig linear;
};

struct CommConfig {
  int64_t init_timeout_seconds = 300;
  int64_t train_timeout_seconds = 100;
  std::string check_cluster = "auto";
};

struct ValidationConfig {
  bool enable = false;
  std::string dataset = "c4_validation";
  std::optional<std::string> dataset_path;
  int64_t local_batch_size = 8;
  int64_t seq_len = 2048;
  int64_t freq = 10;
  int64_t steps = -1;
};

struct DebugConfig {
  std::optional<int64_t> seed;
  bool deterministic = false;
};

struct Config {
  JobConfig job;
  ProfilingConfig profiling;
  MetricsConfig metrics;
  ModelConfig model;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  TrainingConfig training;
  ParallelismConfig parallelism;
  CheckpointConfig checkpoint;
  ActivationCheckpointConfig activation_checkpoint;
  QuantizeConfig quantize;
  CommConfig comm;
  ValidationConfig validation;
  DebugConfig debug;
};

/// Returns the tokenizer's folder or file: model.tokenizer_path (deprecated) where it is given.
inline const std::string& assets_path(const Config& config) {
  return config.model.tokenizer_path ? *config.model.tokenizer_path : config.model.hf_assets_path;
}

/// Returns the seed of initialization, dropout and sampling; an absent debug.seed means 0.
inline int64_t seed_of(const Config& config) {
  return config.debug.seed.value_or(0);
}

}  // namespace tokamak
