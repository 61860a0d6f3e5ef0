// Each key of the table, and each value that it lists, changes what a run does, or a need or an
// error says why it does not.
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/train/options.h"

namespace tokamak {
namespace {

std::string text_of_data(const DataOptions& d) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}\n", d.dataset, d.path, d.text_column,
                     d.seq_len, d.global_batch_size, d.first_row, d.num_rows, d.rows_per_batch,
                     d.shuffle_seed.value_or(99), d.seed, d.most_windows.value_or(-1));
}

std::string text_of_checkpoints(const CheckpointOptions& k) {
  const LoadParts& p = k.parts;
  return fmt::format(
      "{} {} {} {} {} parts {} {} {} {} {} from {} {} last {} {} {} {} {} {} {} {} {} {} {}\n",
      k.enable, k.folder.string(), k.interval, k.keep_latest_k, k.load_step, p.model, p.optimizer,
      p.lr_scheduler, p.loader, p.train_state, k.initial_load_path.string(),
      k.initial_load_model_only, k.last_save_model_only, k.last_save_in_hf, name_of(k.export_dtype),
      k.first_step, k.load_only, k.create_seed, k.in_background, k.pins_copy, k.max_failed_saves,
      k.retry_s, k.timeout.count());
}

// Returns the options of the trainer, as text.
std::string text_of_options(const TrainerOptions& o) {
  const LrSchedule& s = o.schedule;
  const RunGuardOptions& g = o.guard;
  std::string text = text_of_data(o.data) + text_of_checkpoints(o.checkpoint);
  text += fmt::format("{} {} {} lr {} {} {} {} {}\n", o.steps, o.epochs.value_or(-1.0), o.lr,
                      s.warmup_steps, s.total_steps, s.decay_ratio.value_or(-1.0),
                      static_cast<int>(s.decay_type), s.min_lr_factor);
  if (o.validation)
    text += fmt::format("{} {}", o.validation->freq, text_of_data(o.validation->data));
  text +=
      fmt::format("{} {} {} {} {}\n", o.logging.dump_folder.string(), o.logging.log_freq,
                  o.logging.of_all_ranks, o.logging.tensorboard_folder.string(), o.logging.command);
  text += fmt::format("{} {} {} {}\n", o.profiling.traces_folder.string(), o.profiling.freq,
                      o.profiling.active, o.profiling.memory_folder.string());
  text += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(g.steps.on_nonfinite),
                      static_cast<int>(g.steps.on_spike), g.steps.spike_factor, g.slow_ranks.factor,
                      g.check_replicas_every, g.rolls_divergent_back);
  text += fmt::format("{} {}\n", o.init_timeout.count(), o.train_timeout.count());
  return text;
}

std::string text_of_plan(const TrainerOptions& o, const Target& target) {
  const PlannedRun run(o.model, o.shape, target);
  std::string text = memory_table(run) + run.precision_line();
  for (const Plan* plan : run.plans()) text += to_text(*plan);
  for (const std::string& note : run.notes()) text += note;
  for (const TensorPiece& piece : run.pieces()) text += piece.tensor;
  const OptimizerOptions& a = o.shape.training.optimizer;
  text += fmt::format("{} {} {} {} {} {} {}\n", a.decoupled_decay, a.beta1, a.beta2, a.eps,
                      a.weight_decay, a.max_norm, fmt::join(a.no_decay, " "));
  return text + fmt::format("{} {} {}\n", o.shape.training.seed,
                            static_cast<int>(o.shape.device_graphs),
                            static_cast<int>(o.shape.copy_engines));
}

// Returns all that a user or the trainer gets to know of these words.
std::string effect_of(const Strings& words, int arch) {
  std::string text;
  try {
    LoadedConfig loaded = load_config(std::nullopt, words);
    Config& c = loaded.config;
    const int64_t world = default_world_size(c);
    validate(c, world);
    const MeshPlace place{.degrees = resolve_degrees(c.parallelism, world)};
    set_steps(c, place.degrees);
    text = fmt::format("{}\n", fmt::join(loaded.notes, "\n"));
    std::vector<Need> all = needs(c, capabilities(""));
    for (const Need& need : missing_files(c)) all.push_back(need);
    for (const Need& need : all) text += needs_line(need) + "\n";
    if (!all.empty()) return text;
    const TrainerOptions options = options_of(c, nullptr, place);
    text += text_of_options(options);
    text += text_of_plan(options,
                         {.backend = "gpu", .arch = arch, .deterministic = c.debug.deterministic});
  } catch (const Error& error) {
    text += error.what();
  }
  return text;
}

struct Effect {
  const char* key;
  Strings values;   ///< besides those that the table lists
  Strings context;  ///< without which no run reads the key
  Strings same;     ///< values that mean what another does
  int arch = 90;
};

const Strings kModel{"--model.layers=4",      "--model.dim=64",
                     "--model.heads=4",       "--model.kv_heads=2",
                     "--model.vocab=128",     "--training.dataset=synthetic",
                     "--training.seq_len=32", "--training.local_batch_size=4"};
const Strings kDp{"--parallelism.data_parallel_shard_degree=2"};
const Strings kTp{"--parallelism.tensor_parallel_degree=2"};
const Strings kCp{"--parallelism.context_parallel_degree=2"};
const Strings kPp{"--parallelism.pipeline_parallel_degree=2"};
const Strings kFloat8{"--model.converters=float8", "--model.dim=256"};
const Strings kDelayed{"--model.converters=float8", "--model.dim=256",
                       "--quantize.linear.float8.recipe_name=delayed"};
const Strings kMx{"--model.converters=mx", "--model.dim=256"};
const Strings kText{"--training.dataset=text", "--training.dataset_path=."};
const Strings kValidation{"--validation.enable", "--validation.dataset=synthetic",
                          "--validation.steps=1", "--validation.seq_len=32"};

// Keys without a row stand in kElsewhere.
const Effect kEffects[] = {
    {"job.dump_folder", {"elsewhere"}},
    {"job.cuda_graphs"},
    {"profiling.enable_profiling"},
    {"profiling.save_traces_folder", {"x"}, {"--profiling.enable_profiling"}},
    {"profiling.profile_freq", {"3"}},
    {"profiling.profiler_active", {"2"}, {"--profiling.enable_profiling"}},
    {"profiling.enable_memory_snapshot"},
    {"profiling.save_memory_snapshot_folder", {"x"}, {"--profiling.enable_memory_snapshot"}},
    {"metrics.log_freq", {"3"}},
    {"metrics.enable_tensorboard"},
    {"metrics.save_tb_folder", {"x"}, {"--metrics.enable_tensorboard"}},
    {"metrics.command", {"cat"}},
    {"metrics.tracker"},
    {"metrics.enable_wandb"},
    {"metrics.save_for_all_ranks"},
    {"metrics.slow_rank_factor", {"2"}},
    {"model.name", {"llama2", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "other"}},
    {"model.flavor", {"1B", "hf"}},
    {"model.hf_assets_path", {"nowhere"}, kText},
    {"model.tokenizer_path", {"nowhere"}, kText},
    {"model.converters",
     {},
     {"--model.dim=256"},
     {"quantize.linear.float8", "quantize.linear.mx"},
     100},
    {"model.norm_type", {"layernorm"}, {}, {"fused_rmsnorm", "compiled_rmsnorm"}},
    {"model.dropout", {"0.1"}},
    {"model.layers", {"3"}},
    {"model.dim", {"128"}},
    {"model.heads", {"8"}},
    {"model.kv_heads", {"4"}},
    {"model.head_dim", {"32"}},
    {"model.mlp_dim", {"96"}},
    {"model.vocab", {"256"}},
    {"model.window", {"8"}, {"--model.name=mistral"}},
    {"optimizer.name", {"Lion"}},
    {"optimizer.lr", {"0.1"}},
    {"optimizer.beta1", {"0.5"}},
    {"optimizer.beta2", {"0.5"}},
    {"optimizer.eps", {"0.1"}},
    {"optimizer.weight_decay", {"0.5"}},
    {"optimizer.no_decay", {"norm"}},
    {"optimizer.state_dtype", {}, {"--training.dtype=bfloat16"}},
    {"lr_scheduler.warmup_steps", {"3"}},
    {"lr_scheduler.total_steps", {"20"}},
    {"lr_scheduler.decay_ratio", {"0.5"}},
    {"lr_scheduler.decay_type"},
    {"lr_scheduler.min_lr_factor", {"0.1"}},
    // Without a path c4 has one of its own; both wait for a tokenizer here.
    {"training.dataset",
     {"c4", "c4_test", "c4_validation", "text", "tokens", "other"},
     {},
     {"c4_test", "c4_validation"}},
    {"training.dataset_path", {"nowhere"}, {"--training.dataset=tokens"}},
    {"training.text_column", {"body"}},
    {"training.local_batch_size", {"2"}},
    {"training.global_batch_size", {"8"}},
    {"training.seq_len", {"16"}},
    {"training.max_norm", {"0.5"}},
    {"training.steps", {"7"}},
    {"training.tokens", {"1M"}},
    {"training.epochs", {"2"}},
    {"training.enable_cpu_offload"},
    {"training.offload_above_gib", {"1000"}, {"--training.enable_cpu_offload"}},
    {"training.dtype"},
    {"training.mixed_precision_param"},
    {"training.mixed_precision_reduce", {"bfloat16"}},
    {"training.shuffle_seed", {"7"}},
    {"training.grad_store",
     {},
     {"--parallelism.data_parallel_shard_degree=2", "--training.global_batch_size=32"},
     {"full"}},
    {"training.on_nonfinite"},
    {"training.on_spike"},
    {"training.spike_factor", {"2"}},
    {"training.check_replicas_every", {"7"}},
    {"training.on_divergent_replicas"},
    {"parallelism.data_parallel_replicate_degree", {"2"}},
    {"parallelism.data_parallel_shard_degree", {"2"}},
    {"parallelism.data_parallel_type", {}, kDp, {"zero1"}},
    {"parallelism.fsdp_reshard_after_forward", {}, kDp},
    {"parallelism.copy_engine_all_gather", {}, kDp},
    {"parallelism.tensor_parallel_degree", {"2"}},
    {"parallelism.disable_loss_parallel", {}, kTp},
    {"parallelism.cover_tensor_parallel_collectives", {}, kTp},
    {"parallelism.cover_context_parallel_collectives", {}, kCp},
    {"parallelism.pipeline_parallel_degree", {"2"}},
    {"parallelism.module_fqns_per_model_part",
     {"tok_embeddings,layers.0;layers.1,layers.2,layers.3,norm,output"},
     kPp},
    {"parallelism.pipeline_parallel_split_points", {"layers.1"}, kPp},
    {"parallelism.pipeline_parallel_first_stage_less_layers", {"3"}, kPp},
    {"parallelism.pipeline_parallel_last_stage_less_layers", {"3"}, kPp},
    {"parallelism.pipeline_parallel_layers_per_stage",
     {"1"},
     {"--parallelism.pipeline_parallel_degree=2",
      "--parallelism.pipeline_parallel_schedule=Interleaved1F1B"}},
    {"parallelism.pipeline_parallel_schedule", {"other"}, kPp},
    {"parallelism.pipeline_parallel_schedule_csv", {"nowhere"}, kPp},
    {"parallelism.pipeline_parallel_microbatch_size", {"2"}, kPp},
    {"parallelism.pipeline_parallel_receives_ahead", {"0"}, kPp},
    {"parallelism.pipeline_parallel_overlap_gathers",
     {},
     {"--parallelism.pipeline_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"}},
    {"parallelism.pipeline_parallel_join_forwards",
     {},
     {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2"}},
    {"parallelism.context_parallel_degree", {"2"}},
    {"parallelism.context_parallel_load_balancer", {"none"}, kCp},
    {"parallelism.context_parallel_rotate_method", {}, kCp},
    {"checkpoint.enable"},
    {"checkpoint.folder", {"x"}},
    {"checkpoint.interval", {"7"}},
    {"checkpoint.initial_load_path", {"."}},
    {"checkpoint.initial_load_model_only", {}, {"--checkpoint.initial_load_path=."}},
    {"checkpoint.initial_load_in_hf", {}, {"--model.hf_assets_path=."}},
    {"checkpoint.last_save_model_only"},
    {"checkpoint.last_save_in_hf"},
    {"checkpoint.export_dtype"},
    {"checkpoint.async_mode"},
    {"checkpoint.max_failed_saves", {"7"}},
    {"checkpoint.retry_seconds", {"7"}},
    {"checkpoint.timeout_seconds", {"7"}},
    {"checkpoint.keep_latest_k", {"7"}},
    {"checkpoint.load_step", {"7"}},
    {"checkpoint.exclude_from_loading"},
    {"checkpoint.enable_first_step_checkpoint"},
    {"checkpoint.create_seed_checkpoint"},
    {"checkpoint.load_only"},
    {"activation_checkpoint.mode"},
    {"activation_checkpoint.selective_ac_option", {"op", "1"}},
    {"activation_checkpoint.gather_again", {}, kTp},
    {"activation_checkpoint.gather_again_with_head",
     {},
     {"--parallelism.tensor_parallel_degree=2", "--parallelism.pipeline_parallel_degree=2",
      "--parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
      "--activation_checkpoint.gather_again"}},
    {"activation_checkpoint.emit_on_backward"},
    {"activation_checkpoint.memory_budget",
     {"0.1"},
     {"--activation_checkpoint.mode=memory_budget"}},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", {}, kFloat8},
    {"quantize.linear.float8.recipe_name", {"other"}, kFloat8, {"tensorwise"}},
    {"quantize.linear.float8.filter_fqns", {"attention.wq"}, kFloat8},
    {"quantize.linear.float8.emulate", {}, kFloat8},
    {"quantize.linear.float8.round_scales_to_power_of_2", {}, kFloat8, {"never"}},
    {"quantize.linear.float8.scales_per", {}, kFloat8},
    {"quantize.linear.float8.fast_accum", {}, kFloat8, {"output"}},
    {"quantize.linear.float8.grad_dtype", {}, kFloat8, {"float8_e5m2"}},
    {"quantize.linear.float8.amax_history_len", {"4"}, kDelayed},
    {"quantize.linear.float8.amax_compute_algo", {}, kDelayed},
    {"quantize.linear.float8.margin", {"1"}, kDelayed},
    {"quantize.linear.float8.bf16_layers_at_start", {"1"}, kFloat8},
    {"quantize.linear.float8.bf16_layers_at_end", {"1"}, kFloat8},
    {"quantize.linear.float8.keep_transposed_weights", {}, kFloat8},
    {"quantize.linear.float8.long_loss_chunks",
     {},
     {"--model.converters=float8", "--model.dim=256", "--model.vocab=32768",
      "--training.seq_len=2048"}},
    {"quantize.linear.mx.recipe_name", {}, kMx, {"mxfp8"}, 100},
    {"quantize.linear.mx.filter_fqns", {"attention.wq"}, kMx, {}, 100},
    {"quantize.linear.mx.emulate", {}, kMx, {}, 100},
    {"comm.init_timeout_seconds", {"7"}},
    {"comm.train_timeout_seconds", {"7"}},
    {"validation.enable", {}, {"--validation.dataset=synthetic", "--validation.steps=1"}},
    {"validation.dataset", {"shakespeare", "c4", "text", "other"}, {"--validation.enable"}, {"c4"}},
    {"validation.dataset_path",
     {"nowhere"},
     {"--validation.enable", "--validation.dataset=tokens"}},
    {"validation.local_batch_size", {"2"}, kValidation},
    {"validation.seq_len", {"16"}, kValidation},
    {"validation.freq", {"3"}, kValidation},
    {"validation.steps", {"3"}, kValidation},
    {"debug.seed", {"7"}},
    {"debug.deterministic"},
};

// The program reads these itself.
const std::map<std::string_view, std::string_view> kElsewhere{
    {"job.config_file", "config: Load"},
    {"job.description", "torchtitan: KeysOfTheProgram"},
    {"job.print_config", "torchtitan: KeysOfTheProgram"},
    {"job.save_config_file", "torchtitan: KeysOfTheProgram"},
    {"job.device", "dry_run: PlansForAGpuAlsoWhereThereIsNone"},
    {"metrics.disable_color_printing", "terminal"},
    {"training.threads", "torchtitan: KeysOfTheProgram"},
    {"comm.check_cluster", "preflight"},
};

Strings values_of(const Key& key, const Effect& effect) {
  Strings values = allowed_list(key);
  if (type_name(key) == "bool") values = {"true", "false"};
  values.insert(values.end(), effect.values.begin(), effect.values.end());
  return values;
}

void expect_effects(const Key& key, const Effect& effect) {
  Strings words = kModel;
  words.insert(words.end(), effect.context.begin(), effect.context.end());
  const std::string none = effect_of(words, effect.arch);
  std::map<std::string, std::string> values_by_effect{{none, "no word"}};
  const std::string usual = default_text(key);
  for (const std::string& value : values_of(key, effect)) {
    words.push_back(fmt::format("--{}={}", key.name, value));
    const std::string got = effect_of(words, effect.arch);
    words.pop_back();
    if (value == usual || "\"" + value + "\"" == usual) {
      EXPECT_EQ(got, none) << key.name << " = " << value << " is the default";
      continue;
    }
    const auto [at, is_new] = values_by_effect.emplace(got, value);
    const bool may_be_same =
        std::find(effect.same.begin(), effect.same.end(), value) != effect.same.end();
    EXPECT_EQ(is_new, !may_be_same) << key.name << " = " << value << " does what " << at->second
                                    << " does: " << got.substr(0, 300);
  }
}

class EffectOfKeys : public testing::TestWithParam<int> {};

constexpr int kParts = 4;

TEST_P(EffectOfKeys, IsSeenForEachValue) {
  std::set<std::string_view> known;
  for (int i = 0; i < static_cast<int>(std::size(kEffects)); ++i) {
    const Key* key = find_key(kEffects[i].key);
    ASSERT_NE(key, nullptr) << kEffects[i].key;
    EXPECT_TRUE(known.insert(key->name).second) << key->name << " has two rows";
    if (i % kParts == GetParam()) expect_effects(*key, kEffects[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Quarters, EffectOfKeys, testing::Range(0, kParts));

TEST(Keys, HaveAnEffectOrATestElsewhere) {
  std::set<std::string_view> known;
  for (const Effect& effect : kEffects) known.insert(effect.key);
  for (const auto& [name, test] : kElsewhere) {
    EXPECT_NE(find_key(name), nullptr) << name;
    EXPECT_TRUE(known.insert(name).second) << name;
  }
  for (const Key& key : all_keys())
    EXPECT_TRUE(known.contains(key.name)) << key.name << ": no test of its effect";
}

}  // namespace
}  // namespace tokamak
