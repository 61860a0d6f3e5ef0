#include "tokamak/config/key_table.h"

// Each key has one line; its type and default are those of the Config field of the same name.
#define TOK_KEY(path, behaviour, allowed, help)                                     \
  Key {                                                                             \
#path, [](Config & c) -> FieldRef { return &c.path; }, behaviour, allowed, help \
  }

namespace tokamak {

namespace {

using enum Behaviour;

// clang-format off
const Key kKeys[] = {
  TOK_KEY(job.config_file, kHonoured, "path", "Path of the TOML file itself; only useful as an override."),
  TOK_KEY(job.dump_folder, kHonoured, "path", "Root folder of everything that the run writes."),
  TOK_KEY(job.description, kHonoured, "", "Free text, printed at start."),
  TOK_KEY(job.print_config, kHonoured, "", "Log the resolved configuration as JSON."),
  TOK_KEY(job.save_config_file, kHonoured, "path", "Write the resolved configuration as JSON to dump_folder/<this>."),
  TOK_KEY(job.custom_config_module, kFeature, "", "Python module that adds keys; there is no Python here."),
  TOK_KEY(job.device, kHonoured, "auto|cpu|cuda", "Where to run; auto takes a GPU if one is built in and visible (ours)."),
  TOK_KEY(job.cuda_graphs, kHonoured, "auto|never|always", "Replay stretches of kernels from CUDA graphs; auto does so where launching them would cost more than 5 % of a step (ours)."),

  TOK_KEY(profiling.enable_profiling, kFeature, "", "Record a trace of every rank."),
  TOK_KEY(profiling.save_traces_folder, kHonoured, "path", "Folder of traces under dump_folder."),
  TOK_KEY(profiling.profile_freq, kHonoured, ">=1", "One profiling cycle every that many steps."),
  TOK_KEY(profiling.profiler_active, kHonoured, ">=1", "Recorded steps of a cycle."),
  TOK_KEY(profiling.profiler_warmup, kDormant, ">=0", "Steps before the recorded ones that warm up torchtitan's profiler; here recording needs none."),
  TOK_KEY(profiling.enable_memory_snapshot, kFeature, "", "Write the memory plan of every profiling cycle."),
  TOK_KEY(profiling.save_memory_snapshot_folder, kHonoured, "path", "Folder of memory snapshots under dump_folder."),

  TOK_KEY(metrics.log_freq, kHonoured, ">=1", "Steps between log lines; step 1 is always logged."),
  TOK_KEY(metrics.enable_tensorboard, kHonoured, "", "Write TensorBoard event files."),
  TOK_KEY(metrics.disable_color_printing, kHonoured, "", "Log lines without colours."),
  TOK_KEY(metrics.save_tb_folder, kHonoured, "path", "Folder of TensorBoard files under dump_folder."),
  TOK_KEY(metrics.save_for_all_ranks, kHonoured, "", "Metrics and TensorBoard files of every rank, not only of rank 0."),
  TOK_KEY(metrics.slow_rank_factor, kHonoured, ">=0", "A rank is slow if it works this many times as long as the median of those with the same work; 0: none is (ours)."),
  TOK_KEY(metrics.slow_rank_lines, kHonoured, ">=1", "Log lines in a row for which a rank is slow before it is named (ours)."),
  TOK_KEY(metrics.causal_mfu, kHonoured, "", "Also log the MFU that counts only the keys that a causal query sees (ours)."),

  TOK_KEY(model.name, kFeature, "", "Family of models, e.g. llama3, llama2, mistral, qwen2, qwen3, gemma2, gemma3, gpt2."),
  TOK_KEY(model.flavor, kFeature, "", "Row of that family's table of sizes, or hf for the config.json in hf_assets_path."),
  TOK_KEY(model.hf_assets_path, kHonoured, "path", "Folder with tokenizer.json and, for flavor hf, config.json."),
  TOK_KEY(model.tokenizer_path, kHonoured, "path", "Deprecated alias of model.hf_assets_path; may name a tokenizer.model file."),
  TOK_KEY(model.converters, kFeature, "float8|mx|quantize.linear.float8|quantize.grouped_mm.float8|quantize.linear.mx|quantize.linear.nvfp4|quantize.grouped_mm.mx", "Quantizations to apply, in order."),
  TOK_KEY(model.norm_type, kFeature, "~rmsnorm|fused_rmsnorm|compiled_rmsnorm", "Norm of Llama models; all three values mean RMSNorm."),
  TOK_KEY(model.dropout, kHonoured, "0..1", "Overrides every dropout probability of the model (ours)."),
  TOK_KEY(model.layers, kHonoured, ">=1", "Layers in place of the flavor's (ours)."),
  TOK_KEY(model.dim, kHonoured, ">=1", "Width in place of the flavor's; MLP and heads follow (ours)."),
  TOK_KEY(model.heads, kHonoured, ">=1", "Query heads in place of the flavor's (ours)."),
  TOK_KEY(model.kv_heads, kHonoured, ">=1", "Key-value heads, a divisor of the heads (ours)."),
  TOK_KEY(model.head_dim, kHonoured, ">=1", "Width of a head; none: model.dim over model.heads (ours)."),
  TOK_KEY(model.mlp_dim, kHonoured, ">=1", "Width of the MLP; none: as wide beside model.dim as the flavor's (ours)."),
  TOK_KEY(model.vocab, kHonoured, ">=1", "Vocabulary in place of the flavor's (ours)."),
  TOK_KEY(model.window, kHonoured, ">=0", "Sliding window of layers, 0 = none; for mistral, qwen2, qwen3, gemma2 and gemma3 (ours)."),

  TOK_KEY(optimizer.name, kFeature, "~AdamW|Adam", "Optimizer."),
  TOK_KEY(optimizer.lr, kHonoured, ">=0", "Peak learning rate."),
  TOK_KEY(optimizer.beta1, kHonoured, "0..1", "Decay of the first moment."),
  TOK_KEY(optimizer.beta2, kHonoured, "0..1", "Decay of the second moment."),
  TOK_KEY(optimizer.eps, kHonoured, ">=0", "Added to the root of the second moment after bias correction."),
  TOK_KEY(optimizer.weight_decay, kHonoured, ">=0", "Decoupled decay (AdamW) or L2 (Adam), on every parameter but optimizer.no_decay."),
  TOK_KEY(optimizer.early_step_in_backward, kFeature, "", "Update each parameter inside the backward pass, without clipping."),
  TOK_KEY(optimizer.no_decay, kHonoured, "", "Parameters whose name contains one of these texts are not decayed (ours)."),
  TOK_KEY(optimizer.state_dtype, kHonoured, "float32|bfloat16", "Type of the moments (ours); bfloat16 is rounded stochastically; none: training.dtype, rounded to nearest."),

  TOK_KEY(lr_scheduler.warmup_steps, kHonoured, ">=0", "Steps of linear warm-up, at most the total."),
  TOK_KEY(lr_scheduler.total_steps, kHonoured, ">=1", "Length of the schedule; none: training.steps."),
  TOK_KEY(lr_scheduler.decay_ratio, kHonoured, "0..1", "Share of the total that decays at the end; none: decay begins after warm-up."),
  TOK_KEY(lr_scheduler.decay_type, kHonoured, "linear|sqrt|cosine", "Shape of the decay."),
  TOK_KEY(lr_scheduler.min_lr_factor, kHonoured, "0..1", "Lowest rate as a fraction of the peak."),

  TOK_KEY(training.dataset, kFeature, "", "Kind of data: shakespeare, c4, c4_test, text, tokens, synthetic."),
  TOK_KEY(training.dataset_path, kHonoured, "path", "File or folder of the data, or a weighted mix: 0.7 A 0.3 B."),
  TOK_KEY(training.local_batch_size, kHonoured, ">=1", "Sequences of one data-parallel rank and microstep."),
  TOK_KEY(training.global_batch_size, kHonoured, ">=1 or -1", "Sequences of one step; -1: local_batch_size times the data-parallel ranks."),
  TOK_KEY(training.seq_len, kHonoured, ">=1", "Tokens of one sequence."),
  TOK_KEY(training.max_norm, kHonoured, ">=0", "Gradients are clipped to this global norm."),
  TOK_KEY(training.steps, kHonoured, ">=0", "Optimizer steps of the run; 0 with validation: measure its loss and end."),
  TOK_KEY(training.tokens, kHonoured, "", "Tokens of the run in place of steps, as 300M or 20B (k, M, B, T); rounded up to whole steps (ours)."),
  TOK_KEY(training.epochs, kHonoured, ">=0", "Passes over the data in place of steps, whole or not; rounded up to whole steps (ours)."),
  TOK_KEY(training.enable_cpu_offload, kHonoured, "", "Keep master weights and moments in pinned host memory; updates reach them over the device's link."),
  TOK_KEY(training.offload_above_gib, kHonoured, ">=0", "Offload only as much as keeps the plan's device memory at or below this many GiB (ours); 0: all."),
  TOK_KEY(training.dtype, kFeature, "float32|bfloat16", "Type of the master weights; bfloat16 keeps no fp32 copy."),
  TOK_KEY(training.mixed_precision_param, kHonoured, "bfloat16|float32", "Type of the computation."),
  TOK_KEY(training.mixed_precision_reduce, kFeature, "~float32", "Type of the gradient reduction."),
  TOK_KEY(training.shuffle_seed, kHonoured, "", "Shuffles the data by this seed; none: stored order (ours)."),
  TOK_KEY(training.threads, kHonoured, ">=0", "CPU threads of a rank; 0: all cores it may use (ours)."),
  TOK_KEY(training.grad_store, kHonoured, "auto|sharded|full", "Gradients reduced every microbatch into a slice, or accumulated in full (ours)."),
  TOK_KEY(training.on_nonfinite, kHonoured, "stop|skip|replay|rollback", "What is done about a step whose loss or gradient norm is not finite (ours)."),
  TOK_KEY(training.on_spike, kHonoured, "off|warn|stop|skip|replay|rollback", "What is done about a step whose loss or gradient norm is far above those before (ours)."),
  TOK_KEY(training.spike_factor, kHonoured, ">=0", "A spike exceeds the median of the last 100 steps by this many times their spread; 0: none does (ours)."),
  TOK_KEY(training.check_replicas_every, kHonoured, ">=0", "Steps between comparisons of a share of what ranks hold alike, by hash; 0: never (ours)."),
  TOK_KEY(training.on_divergent_replicas, kHonoured, "stop|rollback", "What is done where replicas of a parameter differ (ours)."),

  TOK_KEY(parallelism.data_parallel_replicate_degree, kFeature, ">=1", "Replicas of the model (DDP, or the outer degree of HSDP)."),
  TOK_KEY(parallelism.data_parallel_shard_degree, kFeature, ">=1 or -1", "Ranks that share one replica's state (FSDP); -1: what is left of the world."),
  TOK_KEY(parallelism.data_parallel_type, kHonoured, "fsdp|ddp|zero1|zero2", "What data-parallel ranks share: fsdp all of the state, zero2 gradients and moments, zero1 moments, ddp nothing (a shard degree of -1 is then made of replicas) (ours)."),
  TOK_KEY(parallelism.fsdp_reshard_after_forward, kHonoured, "default|always|never", "Free gathered parameters after the forward pass; default: unless pipelined."),
  TOK_KEY(parallelism.copy_engine_all_gather, kHonoured, "auto|never|always", "GPUs gather sharded parameters by their copy engines instead of kernels; auto does so where all ranks are of one host (ours; NCCL 2.28)."),
  TOK_KEY(parallelism.tensor_parallel_degree, kFeature, ">=1", "Tensor- and sequence-parallel ranks."),
  TOK_KEY(parallelism.disable_loss_parallel, kHonoured, "", "Gather logits instead of a vocabulary-parallel loss."),
  TOK_KEY(parallelism.enable_async_tensor_parallel, kHonoured, "", "Overlap tensor-parallel communication with products, in chunks; only tensor parallelism has any."),
  TOK_KEY(parallelism.cover_tensor_parallel_collectives, kHonoured, "", "Tensor parallelism's collectives in the backward overlap with weight gradients (ours)."),
  TOK_KEY(parallelism.cover_context_parallel_collectives, kHonoured, "", "The gathers and sums of context parallelism overlap with matmuls (ours)."),
  TOK_KEY(parallelism.tensor_parallel_token_blocks, kHonoured, ">=1", "Cuts the tokens into this many blocks; above 1, matmuls run in chunks of blocks and overlap with the collectives of other chunks (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_degree, kFeature, ">=1", "Pipeline-parallel ranks."),
  TOK_KEY(parallelism.module_fqns_per_model_part, kHonoured, "", "Modules of each pipeline stage."),
  TOK_KEY(parallelism.pipeline_parallel_split_points, kHonoured, "", "Modules that begin a new pipeline stage; another way to write module_fqns_per_model_part."),
  TOK_KEY(parallelism.pipeline_parallel_first_stage_less_layers, kHonoured, ">=0", "The embedding counts as that many layers."),
  TOK_KEY(parallelism.pipeline_parallel_last_stage_less_layers, kHonoured, ">=0", "Norm and output count as that many layers."),
  TOK_KEY(parallelism.pipeline_parallel_layers_per_stage, kHonoured, ">=1", "Layers of a stage; none: from the schedule."),
  TOK_KEY(parallelism.pipeline_parallel_schedule, kFeature, "~1F1B|GPipe|Interleaved1F1B|LoopedBFS|InterleavedZeroBubble|ZBVZeroBubble|DualPipeV|VHalf|VMin|PipelineScheduleSingle|PipelineScheduleMulti|_PipelineScheduleRuntime", "Pipeline schedule; case does not matter."),
  TOK_KEY(parallelism.pipeline_parallel_schedule_csv, kFeature, "path", "CSV file of actions for a custom schedule."),
  TOK_KEY(parallelism.pipeline_parallel_microbatch_size, kHonoured, ">=1", "Sequences of a pipeline microbatch; divides training.local_batch_size."),
  TOK_KEY(parallelism.pipeline_parallel_receives_ahead, kHonoured, ">=0", "How many computations before its value is ready a receive is launched (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_overlap_gathers, kHonoured, "", "Weights gathered once a step are gathered stage by stage and overlap with the first forwards (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_join_forwards, kHonoured, "", "A forward's collectives of tensor parallelism overlap with weight gradients that the backward before it leaves (ours)."),
  TOK_KEY(parallelism.pipeline_parallel_expert_parallel_overlap, kDormant, "", "Overlap expert communication under DualPipeV."),
  TOK_KEY(parallelism.context_parallel_degree, kFeature, ">=1", "Ranks that share one sequence."),
  TOK_KEY(parallelism.context_parallel_load_balancer, kHonoured, "headtail|ptrr", "How tokens are dealt to context-parallel ranks; none: in order."),
  TOK_KEY(parallelism.context_parallel_rotate_method, kHonoured, "allgather|alltoall|ulysses", "How context parallelism communicates: keys and values gathered, sent round a ring (alltoall), or heads exchanged for tokens (ulysses, ours)."),
  TOK_KEY(parallelism.expert_parallel_degree, kFeature, ">=1", "Ranks that share the experts."),
  TOK_KEY(parallelism.expert_tensor_parallel_degree, kFeature, ">=1", "Tensor-parallel ranks inside an expert: 1 or the tensor-parallel degree."),
  TOK_KEY(parallelism.expert_parallel_comm_backend, kDormant, "standard|deepep", "Transport of expert parallelism."),

  TOK_KEY(checkpoint.enable, kHonoured, "", "Save checkpoints, and resume from the newest one."),
  TOK_KEY(checkpoint.enable_ft_dataloader_checkpoints, kDormant, "", "Save loader state of every fault-tolerance replica."),
  TOK_KEY(checkpoint.folder, kHonoured, "path", "Folder of checkpoints under dump_folder."),
  TOK_KEY(checkpoint.interval, kHonoured, ">=1", "Steps between checkpoints."),
  TOK_KEY(checkpoint.initial_load_path, kHonoured, "path", "Step folder or Hugging Face folder to start from; ignored when the run has checkpoints of its own."),
  TOK_KEY(checkpoint.initial_load_model_only, kHonoured, "", "Take only the weights from initial_load_path."),
  TOK_KEY(checkpoint.initial_load_in_hf, kHonoured, "", "Start from safetensors with Hugging Face names: those of initial_load_path or, without it, of model.hf_assets_path."),
  TOK_KEY(checkpoint.initial_load_in_hf_quantized, kFeature, "", "Dequantize Hugging Face weights on load."),
  TOK_KEY(checkpoint.last_save_model_only, kHonoured, "", "The last save holds only weights, and cannot be resumed from (true by itself with last_save_in_hf; torchtitan's default is true)."),
  TOK_KEY(checkpoint.last_save_in_hf, kHonoured, "", "The last save is a Hugging Face folder, which holds only weights."),
  TOK_KEY(checkpoint.export_dtype, kHonoured, "float16|bfloat16|float32", "Type of the weights of a model-only last save."),
  TOK_KEY(checkpoint.async_mode, kHonoured, "disabled|async|async_with_pinned_mem", "Save from a copy in host memory while training goes on; pinned, the copy is made at the rate of the GPU's link."),
  TOK_KEY(checkpoint.max_failed_saves, kHonoured, ">=1", "Failed saves in a row after which the run ends with exit code 75 (ours)."),
  TOK_KEY(checkpoint.retry_seconds, kHonoured, ">=0", "Seconds from a failed save to the next attempt; doubled with each further failure (ours)."),
  TOK_KEY(checkpoint.timeout_seconds, kHonoured, ">=1", "Longest that one call to the file system, as an fsync, may take before its rank ends with exit code 75 (ours)."),
  TOK_KEY(checkpoint.keep_latest_k, kHonoured, ">=0", "Checkpoints to keep; 0: all; 1 is not allowed."),
  TOK_KEY(checkpoint.load_step, kHonoured, ">=0 or -1", "Step to resume from; -1: the newest."),
  TOK_KEY(checkpoint.exclude_from_loading, kHonoured, "model|optimizer|lr_scheduler|dataloader|train_state", "Parts of a checkpoint to leave at their initial state; lr_scheduler: the schedule begins again."),
  TOK_KEY(checkpoint.enable_first_step_checkpoint, kHonoured, "", "Save after step 1, to prove that the storage works."),
  TOK_KEY(checkpoint.create_seed_checkpoint, kHonoured, "", "Write the initial weights as step-0 and exit."),
  TOK_KEY(checkpoint.load_only, kHonoured, "", "Load, but never save."),

  TOK_KEY(activation_checkpoint.mode, kFeature, "none|selective|full|memory_budget", "What the backward pass computes again."),
  TOK_KEY(activation_checkpoint.selective_ac_option, kHonoured, "", "In selective mode: op, or a number N for every N-th block."),
  TOK_KEY(activation_checkpoint.gather_again, kHonoured, "", "The backward gathers inputs of tensor parallel products again instead of keeping them; bits stay (ours)."),
  TOK_KEY(activation_checkpoint.gather_again_with_head, kHonoured, "", "Whether the pipeline rank that holds the head does so, too; false: it keeps them (ours)."),
  TOK_KEY(activation_checkpoint.emit_on_backward, kHonoured, "", "Gradient kernels make again what only weight gradients read, so that it is not saved; bits stay (ours)."),
  TOK_KEY(activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns, kDormant, "", "Linear layers whose results are never saved in op mode."),
  TOK_KEY(activation_checkpoint.memory_budget, kHonoured, "0..1", "Share of the activations kept in memory_budget mode."),


  TOK_KEY(quantize.linear.float8.enable_fsdp_float8_all_gather, kDormant, "", "Quantize weights from their masters, not from compute copies; with the float8 converter."),
  TOK_KEY(quantize.linear.float8.recipe_name, kDormant, "~tensorwise|rowwise|rowwise_with_gw_hp|delayed|blockwise", "Scaling recipe; none: tensorwise."),
  TOK_KEY(quantize.linear.float8.filter_fqns, kDormant, "", "Layers whose name contains one of these are left alone, in torchtitan's or Hugging Face's spelling; auto_filter_small_kn skips small ones."),
  TOK_KEY(quantize.linear.float8.emulate, kDormant, "", "Compute fp8 in fp32 where there is no hardware for it."),
  TOK_KEY(quantize.linear.float8.round_scales_to_power_of_2, kDormant, "auto|always|never", "Whether scales are rounded down to powers of two; auto: as the recipe has it. A key of ours."),
  TOK_KEY(quantize.linear.float8.scales_per, kDormant, "product|module", "Whether q, k and v, and gate and up, share the scales of one joint matmul (product) or have their own (module; they are then never merged). A key of ours."),
  TOK_KEY(quantize.linear.float8.fast_accum, kDormant, "output|grad_input|grad_weight", "Matmuls that add in the tensor cores' own precision. A key of ours."),
  TOK_KEY(quantize.linear.float8.grad_dtype, kDormant, "float8_e4m3fn|float8_e5m2", "Format of output gradients; none: the recipe's. A key of ours."),
  TOK_KEY(quantize.linear.float8.amax_history_len, kDormant, ">=1", "Steps whose maxima delayed scales remember. A key of ours."),
  TOK_KEY(quantize.linear.float8.amax_compute_algo, kDormant, "max|most_recent", "Whether delayed scales follow from the greatest or the newest of these maxima. A key of ours."),
  TOK_KEY(quantize.linear.float8.margin, kDormant, ">=0", "Powers of two that delayed scales leave above that maximum. A key of ours."),
  TOK_KEY(quantize.linear.float8.bf16_layers_at_start, kDormant, ">=0", "Layers from the first on whose matmuls stay in the compute dtype. A key of ours."),
  TOK_KEY(quantize.linear.float8.bf16_layers_at_end, kDormant, ">=0", "Layers up to the last whose matmuls stay in the compute dtype. A key of ours."),
  TOK_KEY(quantize.linear.float8.keep_transposed_weights, kDormant, "", "Weights that stay for a step keep their codes in both layouts, instead of being transposed in each backward. A key of ours."),
  TOK_KEY(quantize.linear.float8.long_loss_chunks, kDormant, "", "The loss computes as many tokens at a time as with a head in the compute dtype, although codes then take memory beside the logits. A key of ours."),
  TOK_KEY(quantize.linear.mx.recipe_name, kDormant, "mxfp8|mxfp8_cublas|mxfp8_cublas_rceil|mxfp8_rceil|mxfp8_emulated", "MX recipe; rceil rounds scales up, so that nothing saturates; mxfp8: mxfp8_cublas; mxfp8_emulated: mxfp8_cublas with emulate."),
  TOK_KEY(quantize.linear.mx.filter_fqns, kDormant, "", "Layers that the mx converter leaves alone, as quantize.linear.float8.filter_fqns names them."),
  TOK_KEY(quantize.linear.mx.emulate, kDormant, "", "Compute mxfp8 in fp32 where there is no hardware for it. A key of ours."),
  TOK_KEY(quantize.grouped_mm.float8.fqns, kDormant, "", "Expert modules for the grouped float8 converter."),
  TOK_KEY(quantize.grouped_mm.mx.recipe_name, kDormant, "mxfp8", "MX recipe of experts."),
  TOK_KEY(quantize.grouped_mm.mx.fqns, kDormant, "", "Expert modules for the grouped mx converter."),

  TOK_KEY(comm.init_timeout_seconds, kHonoured, ">=1", "Longest wait for peers until the first step is done."),
  TOK_KEY(comm.train_timeout_seconds, kHonoured, ">=1", "Longest wait for peers after the first step."),
  TOK_KEY(comm.check_cluster, kHonoured, "auto|strict|never", "Check the hosts before step 0; auto: only several hosts, going on with slow ones (ours)."),
  TOK_KEY(comm.trace_buf_size, kDormant, ">=0", "Entries of the flight record of collectives; 0: off."),
  TOK_KEY(comm.save_traces_folder, kDormant, "path", "Folder of flight records under dump_folder."),
  TOK_KEY(comm.save_traces_file_prefix, kDormant, "", "First part of the name of a flight record."),
  TOK_KEY(comm.mode, kFeature, "default|fake_backend|local_tensor", "Run without peers; tokamak plan does this for any world size."),

  TOK_KEY(memory_estimation.enable, kFeature, "", "Estimate memory instead of training; --dry-run and tokamak plan do."),

  TOK_KEY(fault_tolerance.enable, kFeature, "", "Replica groups that come and go."),
  TOK_KEY(fault_tolerance.process_group, kDormant, "gloo|nccl", "Transport between replica groups."),
  TOK_KEY(fault_tolerance.process_group_timeout_ms, kDormant, ">=1", "Longest wait for another replica group."),
  TOK_KEY(fault_tolerance.replica_id, kDormant, ">=0", "Number of this replica group."),
  TOK_KEY(fault_tolerance.group_size, kDormant, ">=0", "Number of replica groups."),
  TOK_KEY(fault_tolerance.min_replica_size, kDormant, ">=0", "Fewest replica groups that may train."),
  TOK_KEY(fault_tolerance.semi_sync_method, kDormant, "~local_sgd|diloco", "How replica groups agree between synchronisations."),
  TOK_KEY(fault_tolerance.sync_steps, kDormant, ">=1", "Steps between synchronisations."),
  TOK_KEY(fault_tolerance.should_quantize, kDormant, "", "Quantize what replica groups exchange."),
  TOK_KEY(fault_tolerance.fragment_sync_delay, kDormant, ">=0", "Steps between sending a fragment and using it."),
  TOK_KEY(fault_tolerance.fragment_update_alpha, kDormant, "0..1", "Share of the local parameters that is kept."),
  TOK_KEY(fault_tolerance.module_fqns_per_model_fragment, kDormant, "", "Modules of each fragment."),
  TOK_KEY(fault_tolerance.num_fragments, kDormant, ">=1", "Fragments of the model."),

  TOK_KEY(experimental.custom_import, kFeature, "", "Python module to import at start; there is no Python here."),
  TOK_KEY(experimental.custom_args_module, kFeature, "", "Python module that adds keys; there is no Python here."),

  TOK_KEY(validation.enable, kHonoured, "", "Measure the loss on other data from time to time."),
  TOK_KEY(validation.dataset, kFeature, "", "Kind of validation data: c4_validation, or any training.dataset."),
  TOK_KEY(validation.dataset_path, kHonoured, "path", "File or folder of the validation data."),
  TOK_KEY(validation.local_batch_size, kHonoured, ">=1", "Sequences of one data-parallel rank."),
  TOK_KEY(validation.seq_len, kHonoured, ">=1", "Tokens of one sequence."),
  TOK_KEY(validation.freq, kHonoured, ">=1", "Steps between validations; also at step 1."),
  TOK_KEY(validation.steps, kHonoured, ">=1 or -1", "Global batches of a validation, of as many sequences as those of training; -1: the whole set."),

  TOK_KEY(debug.seed, kHonoured, "", "Seed of initialization, dropout and sampling; none: 0."),
  TOK_KEY(debug.deterministic, kHonoured, "", "The same bits from every run; a CPU run always is."),
  TOK_KEY(debug.moe_force_load_balance, kDormant, "", "Round-robin routing of experts, for benchmarks; no model here has experts."),
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

}  // namespace tokamak
