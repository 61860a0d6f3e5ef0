#include "tokamak/config/key_table.h"

// Each key has one line; its type and default are those of the Config field of the same name.
#define TOK_KEY(path, allowed, help)                                     \
  Key {                                                                  \
#path, [](Config & c) -> FieldRef { return &c.path; }, allowed, help \
  }
#include <fmt/format.h>

#include "tokamak/config/accepted.h"

namespace tokamak {

namespace {

// clang-format off
const Key kKeys[] = {
  TOK_KEY(job.config_file, "path", "Path of the TOML file itself; only useful as an override."),
  TOK_KEY(job.dump_folder, "path", "Root folder of everything that the run writes."),
  TOK_KEY(job.description, "", "Free text, printed at start."),
  TOK_KEY(job.print_config, "", "Log the resolved configuration as JSON."),
  TOK_KEY(job.save_config_file, "path", "Write the resolved configuration as JSON to dump_folder/<this>."),
  TOK_KEY(job.device, "auto|cpu|cuda", "Where to run; auto takes a GPU if one is built in and visible (ours)."),
  TOK_KEY(job.cuda_graphs, "auto|never|always", "Replay stretches of kernels from CUDA graphs; auto does so where launching them would cost more than 5 % of a step (ours)."),

  TOK_KEY(profiling.enable_profiling, "", "Record a trace of every rank."),
  TOK_KEY(profiling.save_traces_folder, "path", "Folder of traces under dump_folder."),
  TOK_KEY(profiling.profile_freq, ">=1", "One profiling cycle every N steps."),
  TOK_KEY(profiling.profiler_active, ">=1", "Recorded steps of a cycle."),
  TOK_KEY(profiling.enable_memory_snapshot, "", "Write the memory plan of every profiling cycle."),
  TOK_KEY(profiling.save_memory_snapshot_folder, "path", "Folder of memory snapshots under dump_folder."),

  TOK_KEY(metrics.log_freq, ">=1", "Steps between log lines; step 1 is always logged."),
  TOK_KEY(metrics.enable_tensorboard, "", "Write TensorBoard event files."),
  TOK_KEY(metrics.disable_color_printing, "", "Log lines without colours."),
  TOK_KEY(metrics.save_tb_folder, "path", "Folder of TensorBoard files under dump_folder."),
  TOK_KEY(metrics.command, "", "Shell command that gets every line of metrics.jsonl, validation.jsonl and events.jsonl on its standard input as the run goes on; empty: none (ours)."),
  TOK_KEY(metrics.tracker, "none|wandb|mlflow|aim|trackio", "Experiment tracker that gets the metrics live, by its own Python package (ours)."),
  TOK_KEY(metrics.enable_wandb, "", "The same as metrics.tracker = \"wandb\"."),
  TOK_KEY(metrics.save_for_all_ranks, "", "Metrics and TensorBoard files of every rank, not only of rank 0."),
  TOK_KEY(metrics.slow_rank_factor, ">=0", "A rank is slow if it works this many times as long as the median of those with the same work; 0: none is (ours)."),

  TOK_KEY(model.name, "", "Family of models, e.g. llama3, llama2, mistral, qwen2, qwen3, gemma2, gemma3, gpt2."),
  TOK_KEY(model.flavor, "", "Row of that family's table of sizes, or hf for the config.json in hf_assets_path."),
  TOK_KEY(model.hf_assets_path, "path", "Folder with tokenizer.json and, for flavor hf, config.json."),
  TOK_KEY(model.tokenizer_path, "path", "Deprecated alias of model.hf_assets_path; may name a tokenizer.model file."),
  TOK_KEY(model.converters, "float8|mx|quantize.linear.float8|quantize.grouped_mm.float8|quantize.linear.mx|quantize.linear.nvfp4|quantize.grouped_mm.mx", "Quantizations to apply, in order."),
  TOK_KEY(model.norm_type, "~rmsnorm|fused_rmsnorm|compiled_rmsnorm", "Norm of Llama models; all three values mean RMSNorm."),
  TOK_KEY(model.dropout, "0..1", "Overrides every dropout probability of the model (ours)."),
  TOK_KEY(model.layers, ">=1", "Layers in place of the flavor's (ours)."),
  TOK_KEY(model.dim, ">=1", "Width in place of the flavor's; MLP and heads follow (ours)."),
  TOK_KEY(model.heads, ">=1", "Query heads in place of the flavor's (ours)."),
  TOK_KEY(model.kv_heads, ">=1", "Key-value heads, a divisor of the heads (ours)."),
  TOK_KEY(model.head_dim, ">=1", "Width of a head; none: model.dim over model.heads (ours)."),
  TOK_KEY(model.mlp_dim, ">=1", "Width of the MLP; none: in the same ratio to model.dim as in the flavor (ours)."),
  TOK_KEY(model.vocab, ">=1", "Vocabulary in place of the flavor's (ours)."),
  TOK_KEY(model.window, ">=0", "Sliding window of layers, 0 = none; for mistral, qwen2, qwen3, gemma2 and gemma3 (ours)."),

  TOK_KEY(optimizer.name, "~AdamW|Adam", "Optimizer."),
  TOK_KEY(optimizer.lr, ">=0", "Peak learning rate."),
  TOK_KEY(optimizer.beta1, "0..1", "Decay of the first moment."),
  TOK_KEY(optimizer.beta2, "0..1", "Decay of the second moment."),
  TOK_KEY(optimizer.eps, ">=0", "Added to the root of the second moment after bias correction."),
  TOK_KEY(optimizer.weight_decay, ">=0", "Decoupled decay (AdamW) or L2 (Adam), on every parameter but optimizer.no_decay."),
  TOK_KEY(optimizer.no_decay, "", "Parameters whose name contains one of these texts are not decayed (ours)."),
  TOK_KEY(optimizer.state_dtype, "float32|bfloat16", "Type of the moments (ours); bfloat16 is rounded stochastically; none: training.dtype, rounded to nearest."),

  TOK_KEY(lr_scheduler.warmup_steps, ">=0", "Steps of linear warm-up, at most the total."),
  TOK_KEY(lr_scheduler.total_steps, ">=1", "Length of the schedule; none: training.steps."),
  TOK_KEY(lr_scheduler.decay_ratio, "0..1", "Share of the total that decays at the end; none: decay begins after warm-up."),
  TOK_KEY(lr_scheduler.decay_type, "linear|sqrt|cosine", "Shape of the decay."),
  TOK_KEY(lr_scheduler.min_lr_factor, "0..1", "Lowest rate as a fraction of the peak."),

  TOK_KEY(training.dataset, "", "Kind of data: shakespeare, c4, c4_test, text, tokens, synthetic."),
  TOK_KEY(training.dataset_path, "path or address", "File or folder of the data, here or as hf:OWNER/NAME#FOLDER, s3://BUCKET/KEY or gs://BUCKET/KEY, or a weighted mix: 0.7 A 0.3 B; of c4 without one: hf:allenai/c4#en."),
  TOK_KEY(training.text_column, "", "Field of JSON lines or column of Parquet files that holds the text (ours); a.b: member of one."),
  TOK_KEY(training.local_batch_size, ">=1", "Sequences of one data-parallel rank and microstep."),
  TOK_KEY(training.global_batch_size, ">=1 or -1", "Sequences of one step; -1: local_batch_size times the data-parallel ranks."),
  TOK_KEY(training.seq_len, ">=1", "Tokens of one sequence."),
  TOK_KEY(training.max_norm, ">=0", "Gradients are clipped to this global norm."),
  TOK_KEY(training.steps, ">=0", "Optimizer steps of the run; 0 with validation: measure its loss and end."),
  TOK_KEY(training.tokens, "", "Tokens of the run in place of steps, as 300M or 20B (k, M, B, T); rounded up to whole steps (ours)."),
  TOK_KEY(training.epochs, ">=0", "Passes over the data in place of steps, whole or not; rounded up to whole steps (ours)."),
  TOK_KEY(training.enable_cpu_offload, "", "Keep master weights and moments in pinned host memory; updates reach them over the device's link."),
  TOK_KEY(training.offload_above_gib, ">=0", "Offload only as much as keeps the plan's device memory at or below this many GiB (ours); 0: all."),
  TOK_KEY(training.dtype, "float32|bfloat16", "Type of the master weights; bfloat16 keeps no fp32 copy."),
  TOK_KEY(training.mixed_precision_param, "bfloat16|float32", "Type of the computation."),
  TOK_KEY(training.mixed_precision_reduce, "~float32", "Type of the gradient reduction."),
  TOK_KEY(training.shuffle_seed, "", "Shuffles the data by this seed; none: stored order (ours)."),
  TOK_KEY(training.threads, ">=0", "CPU threads of a rank; 0: all cores it may use (ours)."),
  TOK_KEY(training.grad_store, "auto|sharded|full", "Gradients reduced every microbatch into a slice, or accumulated in full (ours)."),
  TOK_KEY(training.on_nonfinite, "stop|skip|replay|rollback", "What is done about a step whose loss or gradient norm is not finite (ours)."),
  TOK_KEY(training.on_spike, "off|warn|stop|skip|replay|rollback", "What is done about a step whose loss or gradient norm is far above those before (ours)."),
  TOK_KEY(training.spike_factor, ">=0", "A spike exceeds the median of the last 100 steps by this many times their spread; 0: none does (ours)."),
  TOK_KEY(training.check_replicas_every, ">=0", "Steps between comparisons of a share of what ranks hold alike, by hash; 0: never (ours)."),
  TOK_KEY(training.on_divergent_replicas, "stop|rollback", "What is done where replicas of a parameter differ (ours)."),

  TOK_KEY(parallelism.data_parallel_replicate_degree, ">=1", "Replicas of the model (DDP, or the outer degree of HSDP)."),
  TOK_KEY(parallelism.data_parallel_shard_degree, ">=1 or -1", "Ranks that share one replica's state (FSDP); -1: what is left of the world."),
  TOK_KEY(parallelism.data_parallel_type, "fsdp|ddp|zero1|zero2", "What data-parallel ranks share: fsdp all of the state, zero2 gradients and moments, zero1 moments, ddp nothing (a shard degree of -1 then means replicas) (ours)."),
  TOK_KEY(parallelism.fsdp_reshard_after_forward, "default|always|never", "Free gathered parameters after the forward pass; default: unless pipelined."),
  TOK_KEY(parallelism.copy_engine_all_gather, "auto|never|always", "GPUs gather sharded parameters by their copy engines instead of kernels; auto does so where all ranks share one host (ours; NCCL 2.28)."),
  TOK_KEY(parallelism.tensor_parallel_degree, ">=1", "Tensor- and sequence-parallel ranks."),
  TOK_KEY(parallelism.disable_loss_parallel, "", "Gather logits instead of a vocabulary-parallel loss."),
  TOK_KEY(parallelism.cover_tensor_parallel_collectives, "", "Tensor parallelism's collectives in the backward overlap with weight gradients (ours)."),
  TOK_KEY(parallelism.cover_context_parallel_collectives, "", "The gathers and sums of context parallelism overlap with matmuls (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_degree, ">=1", "Pipeline-parallel ranks."),
  TOK_KEY(parallelism.module_fqns_per_model_part, "", "Modules of each pipeline stage."),
  TOK_KEY(parallelism.pipeline_parallel_split_points, "", "Modules that begin a new pipeline stage; another way to write module_fqns_per_model_part."),
  TOK_KEY(parallelism.pipeline_parallel_first_stage_less_layers, ">=0", "The embedding counts as N layers."),
  TOK_KEY(parallelism.pipeline_parallel_last_stage_less_layers, ">=0", "Norm and output count as N layers."),
  TOK_KEY(parallelism.pipeline_parallel_layers_per_stage, ">=1", "Layers of a stage; none: from the schedule."),
  TOK_KEY(parallelism.pipeline_parallel_schedule, "~1F1B|GPipe|Interleaved1F1B|LoopedBFS|InterleavedZeroBubble|ZBVZeroBubble|DualPipeV|VHalf|VMin|PipelineScheduleSingle|PipelineScheduleMulti|_PipelineScheduleRuntime", "Pipeline schedule; case does not matter."),
  TOK_KEY(parallelism.pipeline_parallel_schedule_csv, "path", "CSV file of actions for a custom schedule."),
  TOK_KEY(parallelism.pipeline_parallel_microbatch_size, ">=1", "Sequences of a pipeline microbatch; divides training.local_batch_size."),
  TOK_KEY(parallelism.pipeline_parallel_receives_ahead, ">=0", "How many computations before its value is ready a receive is launched (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_overlap_gathers, "", "Weights gathered once a step are gathered stage by stage and overlap with the first forwards (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_join_forwards, "", "A forward's collectives of tensor parallelism overlap with weight gradients that the backward before it leaves (ours)."),
  TOK_KEY(parallelism.context_parallel_degree, ">=1", "Ranks that share one sequence."),
  TOK_KEY(parallelism.context_parallel_load_balancer, "headtail|ptrr", "How tokens are dealt to context-parallel ranks; none: in order."),
  TOK_KEY(parallelism.context_parallel_rotate_method, "allgather|alltoall|ulysses", "How context parallelism communicates: keys and values gathered, sent round a ring (alltoall), or heads exchanged for tokens (ulysses, ours)."),

  TOK_KEY(checkpoint.enable, "", "Save checkpoints, and resume from the newest one."),
  TOK_KEY(checkpoint.folder, "path", "Folder of checkpoints under dump_folder."),
  TOK_KEY(checkpoint.interval, ">=1", "Steps between checkpoints."),
  TOK_KEY(checkpoint.initial_load_path, "path", "Step folder or Hugging Face folder to start from; ignored when the run has checkpoints of its own."),
  TOK_KEY(checkpoint.initial_load_model_only, "", "Take only the weights from initial_load_path."),
  TOK_KEY(checkpoint.initial_load_in_hf, "", "Start from safetensors with Hugging Face names: those of initial_load_path or, without it, of model.hf_assets_path."),
  TOK_KEY(checkpoint.last_save_model_only, "", "The last save holds only weights, and cannot be resumed from (true by itself with last_save_in_hf; torchtitan's default is true)."),
  TOK_KEY(checkpoint.last_save_in_hf, "", "The last save is a Hugging Face folder, which holds only weights."),
  TOK_KEY(checkpoint.export_dtype, "float16|bfloat16|float32", "Type of the weights of a model-only last save."),
  TOK_KEY(checkpoint.async_mode, "disabled|async|async_with_pinned_mem", "Save from a copy in host memory while training goes on; pinned, the copy is made at the rate of the GPU's link."),
  TOK_KEY(checkpoint.max_failed_saves, ">=1", "Failed saves in a row after which the run ends with exit code 75 (ours)."),
  TOK_KEY(checkpoint.retry_seconds, ">=0", "Seconds from a failed save to the next attempt; doubled with each further failure (ours)."),
  TOK_KEY(checkpoint.timeout_seconds, ">=1", "Longest that one call to the file system, as an fsync, may take before its rank ends with exit code 75 (ours)."),
  TOK_KEY(checkpoint.keep_latest_k, ">=0", "Checkpoints to keep; 0: all; 1 is not allowed."),
  TOK_KEY(checkpoint.load_step, ">=0 or -1", "Step to resume from; -1: the newest."),
  TOK_KEY(checkpoint.exclude_from_loading, "model|optimizer|lr_scheduler|dataloader|train_state", "Parts of a checkpoint to leave at their initial state; lr_scheduler: the schedule begins again."),
  TOK_KEY(checkpoint.enable_first_step_checkpoint, "", "Save after step 1, to prove that the storage works."),
  TOK_KEY(checkpoint.create_seed_checkpoint, "", "Write the initial weights as step-0 and exit."),
  TOK_KEY(checkpoint.load_only, "", "Load, but never save."),

  TOK_KEY(activation_checkpoint.mode, "none|selective|full|memory_budget", "What the backward pass computes again."),
  TOK_KEY(activation_checkpoint.selective_ac_option, "", "In selective mode: op, or a number N for every N-th block."),
  TOK_KEY(activation_checkpoint.gather_again, "", "The backward gathers inputs of tensor parallel products again instead of keeping them; bits stay (ours)."),
  TOK_KEY(activation_checkpoint.gather_again_with_head, "", "Whether the pipeline rank that holds the head does so, too; false: it keeps them (ours)."),
  TOK_KEY(activation_checkpoint.emit_on_backward, "", "Gradient kernels make again what only weight gradients read, so that it is not saved; bits stay (ours)."),
  TOK_KEY(activation_checkpoint.memory_budget, "0..1", "Share of the activations kept in memory_budget mode."),

  TOK_KEY(quantize.linear.float8.enable_fsdp_float8_all_gather, "", "Quantize weights from their masters, not from compute copies; with the float8 converter."),
  TOK_KEY(quantize.linear.float8.recipe_name, "~tensorwise|rowwise|rowwise_with_gw_hp|delayed|blockwise", "Scaling recipe; none: tensorwise."),
  TOK_KEY(quantize.linear.float8.filter_fqns, "", "Layers whose name contains one of these are left alone, in torchtitan's or Hugging Face's spelling; auto_filter_small_kn skips small ones."),
  TOK_KEY(quantize.linear.float8.emulate, "", "Compute fp8 in fp32 where there is no hardware for it."),
  TOK_KEY(quantize.linear.float8.round_scales_to_power_of_2, "auto|always|never", "Whether scales are rounded down to powers of two; auto: as the recipe has it. A key of ours."),
  TOK_KEY(quantize.linear.float8.scales_per, "product|module", "Whether q, k and v, and gate and up, share the scales of one joint matmul (product) or have their own (module; they are then never merged). A key of ours."),
  TOK_KEY(quantize.linear.float8.fast_accum, "output|grad_input|grad_weight", "Matmuls that add in the tensor cores' own precision. A key of ours."),
  TOK_KEY(quantize.linear.float8.grad_dtype, "float8_e4m3fn|float8_e5m2", "Format of output gradients; none: the recipe's. A key of ours."),
  TOK_KEY(quantize.linear.float8.amax_history_len, ">=1", "Steps whose maxima delayed scales remember. A key of ours."),
  TOK_KEY(quantize.linear.float8.amax_compute_algo, "max|most_recent", "Whether delayed scales follow from the greatest or the newest of these maxima. A key of ours."),
  TOK_KEY(quantize.linear.float8.margin, ">=0", "Powers of two that delayed scales leave above that maximum. A key of ours."),
  TOK_KEY(quantize.linear.float8.bf16_layers_at_start, ">=0", "Layers from the first on whose matmuls stay in the compute dtype. A key of ours."),
  TOK_KEY(quantize.linear.float8.bf16_layers_at_end, ">=0", "Layers up to the last whose matmuls stay in the compute dtype. A key of ours."),
  TOK_KEY(quantize.linear.float8.keep_transposed_weights, "", "Weights that stay for a step stay quantized in both layouts, instead of being transposed in each backward. A key of ours."),
  TOK_KEY(quantize.linear.float8.long_loss_chunks, "", "The loss computes the same number of tokens at a time as with a head in the compute dtype, although quantized values then take memory as well as the logits. A key of ours."),
  TOK_KEY(quantize.linear.mx.recipe_name, "mxfp8|mxfp8_cublas|mxfp8_cublas_rceil|mxfp8_rceil|mxfp8_emulated", "MX recipe; rceil rounds scales up, so that nothing saturates; mxfp8: mxfp8_cublas; mxfp8_emulated: mxfp8_cublas with emulate."),
  TOK_KEY(quantize.linear.mx.filter_fqns, "", "Layers that the mx converter leaves alone, as quantize.linear.float8.filter_fqns names them."),
  TOK_KEY(quantize.linear.mx.emulate, "", "Compute mxfp8 in fp32 where there is no hardware for it. A key of ours."),

  TOK_KEY(comm.init_timeout_seconds, ">=1", "Longest wait for peers until the first step is done."),
  TOK_KEY(comm.train_timeout_seconds, ">=1", "Longest wait for peers after the first step."),
  TOK_KEY(comm.check_cluster, "auto|strict|never", "Check the hosts before step 0; auto: only several hosts, going on with slow ones (ours)."),

  TOK_KEY(validation.enable, "", "Measure the loss on other data from time to time."),
  TOK_KEY(validation.dataset, "", "Kind of validation data: c4_validation, or any training.dataset."),
  TOK_KEY(validation.dataset_path, "path or address", "File or folder of the validation data, as in training.dataset_path."),
  TOK_KEY(validation.local_batch_size, ">=1", "Sequences of one data-parallel rank."),
  TOK_KEY(validation.seq_len, ">=1", "Tokens of one sequence."),
  TOK_KEY(validation.freq, ">=1", "Steps between validations; also at step 1."),
  TOK_KEY(validation.steps, ">=1 or -1", "Global batches of a validation, of the same number of sequences as in training; -1: the whole set."),

  TOK_KEY(debug.seed, "", "Seed of initialization, dropout and sampling; none: 0."),
  TOK_KEY(debug.deterministic, "", "The same bits from every run; a CPU run always is."),
};
// clang-format on

#undef TOK_KEY

}  // namespace

std::span<const Key> all_keys() {
  return kKeys;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string unknown_key_hint(std::string_view name) {
  std::string best;
  size_t best_distance = ~size_t{0};
  const auto is_nearer = [&](std::string_view known) {
    const size_t distance = name_distance(name, known);
    if (distance >= best_distance || !is_near(name, known)) return false;
    best_distance = distance;
    return true;
  };
  std::string_view section;
  for (const Key& key : all_keys()) {
    if (is_nearer(key.name)) best = key.name;
    const std::string_view known(key.name);
    const size_t dot = known.rfind('.');
    if (name.substr(0, dot + 1) == known.substr(0, dot + 1)) section = known.substr(0, dot);
  }
  for (const AcceptedName& key : accepted_names()) {
    const bool is_renamed = key.fate == Fate::kRename || key.fate == Fate::kInvert;
    if (is_renamed && is_nearer(key.name)) best = fmt::format("{} (now {})", key.name, key.means);
  }
  if (!best.empty()) return fmt::format("; the nearest is {}", best);
  return fmt::format("; `tokamak help {}` lists the keys", section.empty() ? "all" : section);
}

}  // namespace tokamak
