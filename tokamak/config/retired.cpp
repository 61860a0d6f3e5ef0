#include "tokamak/config/retired.h"

namespace tokamak {

namespace {

using enum Fate;

// clang-format off
const RetiredKey kRetired[] = {
    {"checkpoint.enable_checkpoint", kRename, "checkpoint.enable", ""},
    {"checkpoint.initial_load_model_weights_only", kRename, "checkpoint.initial_load_model_only", ""},
    {"checkpoint.interval_type", kTranslate, "checkpoint.interval", "steps is the only meaning left; seconds is refused"},
    {"checkpoint.last_save_in_safetensors_format", kRename, "checkpoint.last_save_in_hf", ""},
    {"checkpoint.last_save_model_weights_only", kRename, "checkpoint.last_save_model_only", ""},
    {"checkpoint.model_weights_only", kRename, "checkpoint.last_save_model_only", ""},
    {"comm.timeout_seconds", kTranslate, "comm.train_timeout_seconds", "sets comm.init_timeout_seconds too"},
    {"estimate.memory", kTranslate, "memory_estimation.enable", ""},
    {"estimate.mode", kTranslate, "memory_estimation.disable_fake_mode", ""},
    {"experimental.context_parallel_degree", kRename, "parallelism.context_parallel_degree", ""},
    {"experimental.context_parallel_rotate_method", kRename, "parallelism.context_parallel_rotate_method", ""},
    {"experimental.custom_model_path", kRename, "experimental.custom_import", ""},
    {"experimental.enable_async_tensor_parallel", kRename, "parallelism.enable_async_tensor_parallel", ""},
    {"experimental.enable_compiled_autograd", kDrop, "", "PyTorch's compiled autograd; everything is compiled ahead of time", true},
    {"experimental.pipeline_parallel_degree", kRename, "parallelism.pipeline_parallel_degree", ""},
    {"experimental.pipeline_parallel_microbatches", kTranslate, "parallelism.pipeline_parallel_microbatch_size", "local_batch_size divided by the count"},
    {"experimental.pipeline_parallel_schedule", kRename, "parallelism.pipeline_parallel_schedule", ""},
    {"experimental.pipeline_parallel_schedule_csv", kRename, "parallelism.pipeline_parallel_schedule_csv", ""},
    {"experimental.pipeline_parallel_split_mode", kDrop, "", "pipeline stages are always cut from the graph"},
    {"experimental.pipeline_parallel_split_points", kRename, "parallelism.pipeline_parallel_split_points", ""},
    {"experimental.torch_spmd", kDrop, "", "an experiment of a day without a successor", true},
    {"float8.emulate", kRename, "quantize.linear.float8.emulate", ""},
    {"float8.enable_float8_linear", kTranslate, "model.converters", "adds quantize.linear.float8", true},
    {"float8.enable_fsdp_float8_all_gather", kRename, "quantize.linear.float8.enable_fsdp_float8_all_gather", ""},
    {"float8.filter_fqns", kRename, "quantize.linear.float8.filter_fqns", ""},
    {"float8.force_recompute_fp8_weight_in_bwd", kDrop, "", "the recompute pass decides", true},
    {"float8.moe_fqns", kRename, "quantize.grouped_mm.float8.fqns", ""},
    {"float8.moe_fqns_prototype", kRename, "quantize.grouped_mm.float8.fqns", ""},
    {"float8.precompute_float8_dynamic_scale_for_fsdp", kRename, "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", ""},
    {"float8.recipe_name", kRename, "quantize.linear.float8.recipe_name", ""},
    {"float8.scaling_type_grad_output", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"float8.scaling_type_input", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"float8.scaling_type_weight", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"global.dump_folder", kRename, "job.dump_folder", ""},
    {"job.print_args", kRename, "job.print_config", ""},
    {"job.save_config_folder", kRename, "job.save_config_file", ""},
    {"job.use_for_integration_test", kDrop, "", "marked files for torchtitan's own tests", true},
    {"lr_scheduler.lr_min", kRename, "lr_scheduler.min_lr_factor", ""},
    {"memory_estimation.enabled", kRename, "memory_estimation.enable", ""},
    {"metrics.disable_logging_from_checkpoint", kDrop, "", "silenced a PyTorch logger", true},
    {"metrics.enable_color_printing", kInvert, "metrics.disable_color_printing", ""},
    {"metrics.rank_0_only", kInvert, "metrics.save_for_all_ranks", ""},
    {"metrics.use_for_integration_test", kDrop, "", "marked files for torchtitan's own tests", true},
    {"model.attn_mask_type", kTranslate, "model.flavor", "causal is the only mask; block_causal needs a flavor"},
    {"model.use_flex_attn", kTranslate, "model.flavor", "a *_flex_attn flavor", true},
    {"mx.filter_fqns", kRename, "quantize.linear.mx.filter_fqns", ""},
    {"mx.moe_fqns_prototype", kRename, "quantize.grouped_mm.mx.fqns", ""},
    {"mx.mxfp8_dim1_cast_kernel_choice", kRename, "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", ""},
    {"mx.recipe_name", kRename, "quantize.linear.mx.recipe_name", ""},
    {"mx.use_fp8_dim1_cast_triton_kernel", kTranslate, "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", "true: triton, false: torch", true},
    {"optimizer.fused", kTranslate, "optimizer.implementation", "true: fused, false: foreach", true},
    {"parallelism.enable_compiled_autograd", kDrop, "", "PyTorch's compiled autograd; everything is compiled ahead of time", true},
    {"parallelism.pipeline_parallel_microbatches", kTranslate, "parallelism.pipeline_parallel_microbatch_size", "local_batch_size divided by the count"},
    {"profiling.profile_every_x_iter", kRename, "profiling.profile_freq", ""},
    {"profiling.run_profiler", kRename, "profiling.enable_profiling", ""},
    {"quantize.dense.float8.emulate", kRename, "quantize.linear.float8.emulate", ""},
    {"quantize.dense.float8.enable_fsdp_float8_all_gather", kRename, "quantize.linear.float8.enable_fsdp_float8_all_gather", ""},
    {"quantize.dense.float8.filter_fqns", kRename, "quantize.linear.float8.filter_fqns", ""},
    {"quantize.dense.float8.precompute_float8_dynamic_scale_for_fsdp", kRename, "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", ""},
    {"quantize.dense.float8.recipe_name", kRename, "quantize.linear.float8.recipe_name", ""},
    {"quantize.dense.mx.filter_fqns", kRename, "quantize.linear.mx.filter_fqns", ""},
    {"quantize.dense.mx.mxfp8_dim1_cast_kernel_choice", kRename, "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", ""},
    {"quantize.dense.mx.recipe_name", kRename, "quantize.linear.mx.recipe_name", ""},
    {"quantize.moe.float8.fqns", kRename, "quantize.grouped_mm.float8.fqns", ""},
    {"quantize.moe.mx.fqns", kRename, "quantize.grouped_mm.mx.fqns", ""},
    {"training.batch_size", kRename, "training.local_batch_size", ""},
    {"training.checkpoint_folder", kTranslate, "checkpoint.folder", "a folder switches checkpoints on, empty text leaves them off"},
    {"training.checkpoint_interval", kRename, "checkpoint.interval", ""},
    {"training.checkpoint_interval_type", kTranslate, "checkpoint.interval", "steps is the only meaning left; seconds is refused"},
    {"training.compile", kRename, "compile.enable", ""},
    {"training.data_parallel_degree", kTranslate, "parallelism.data_parallel_shard_degree", "or the replicate degree, by data_parallel_type"},
    {"training.data_parallel_replicate_degree", kRename, "parallelism.data_parallel_replicate_degree", ""},
    {"training.data_parallel_shard_degree", kRename, "parallelism.data_parallel_shard_degree", ""},
    {"training.data_parallel_type", kRename, "parallelism.data_parallel_type", ""},
    {"training.debug_moe_force_load_balance", kRename, "debug.moe_force_load_balance", ""},
    {"training.deterministic", kRename, "debug.deterministic", ""},
    {"training.disable_loss_parallel", kRename, "parallelism.disable_loss_parallel", ""},
    {"training.enable_float8_linear", kTranslate, "model.converters", "adds quantize.linear.float8", true},
    {"training.enable_fp8_linear", kTranslate, "model.converters", "adds quantize.linear.float8", true},
    {"training.enable_fsdp_float8_all_gather", kRename, "quantize.linear.float8.enable_fsdp_float8_all_gather", ""},
    {"training.enable_fsdp_fp8_all_gather", kRename, "quantize.linear.float8.enable_fsdp_float8_all_gather", ""},
    {"training.enable_loss_parallel", kInvert, "parallelism.disable_loss_parallel", ""},
    {"training.enable_selective_ac", kTranslate, "activation_checkpoint.mode", "true: selective, false: full", true},
    {"training.float8_scaling_type_grad_output", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"training.float8_scaling_type_input", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"training.float8_scaling_type_weight", kTranslate, "quantize.linear.float8.recipe_name", "dynamic is the only scaling left"},
    {"training.fp8_linear", kTranslate, "model.converters", "adds quantize.linear.float8", true},
    {"training.fsdp_reshard_after_forward", kRename, "parallelism.fsdp_reshard_after_forward", ""},
    {"training.pipeline_parallel_degree", kRename, "parallelism.pipeline_parallel_degree", ""},
    {"training.precompute_float8_dynamic_scale_for_fsdp", kRename, "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", ""},
    {"training.seed", kRename, "debug.seed", ""},
    {"training.sequence_parallel_degree", kRename, "parallelism.tensor_parallel_degree", ""},
    {"training.tensor_parallel_degree", kRename, "parallelism.tensor_parallel_degree", ""},
    {"training.warmup_pct", kTranslate, "lr_scheduler.warmup_steps", "that share of training.steps"},
    {"training.warmup_steps", kRename, "lr_scheduler.warmup_steps", ""},
    {"validation.enabled", kRename, "validation.enable", ""},
};
// clang-format on

}  // namespace

std::span<const RetiredKey> all_retired_keys() {
  return kRetired;
}

const RetiredKey* find_retired_key(std::string_view name) {
  for (const RetiredKey& key : kRetired) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

}  // namespace tokamak
