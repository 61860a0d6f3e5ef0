#include <set>

#include <gtest/gtest.h>

#include "tokamak/config/accepted.h"
#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

LoadedConfig load(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return parse_toml_text(toml, "f.toml", overrides);
}

std::string error_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  try {
    const LoadedConfig loaded = load(toml, overrides);
    validate(loaded.config, default_world_size(loaded.config));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Keys, AreDescribedOnce) {
  std::set<std::string_view> names;
  for (const Key& key : all_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    Config config;
    EXPECT_EQ(set_value(config, key, get_value(Config(), key)), "") << key.name;
  }
  for (const AcceptedName& key : accepted_names()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    const bool is_renamed = key.fate == Fate::kRename || key.fate == Fate::kInvert;
    EXPECT_EQ(is_renamed, find_key(key.means) != nullptr) << key.name;
    EXPECT_TRUE(is_renamed || key.fate == Fate::kConvert || !key.note.empty()) << key.name;
  }
}

struct Bad {
  const char* toml;
  const char* error;
};

TEST(Load, NamesWhatIsWrong) {
  const Bad cases[] = {
      {"[training]\nseq_length = 3\n",
       "f.toml:2: training.seq_length: no such key; the nearest is training.seq_len"},
      {"[trainig]\nseq_len = 3\n",
       "f.toml:2: trainig.seq_len: no such key; the nearest is training.seq_len"},
      {"[training]\nbatch_sizes = 3\n",
       "f.toml:2: training.batch_sizes: no such key; the nearest is training.batch_size (now "
       "training.local_batch_size)"},
      {"[training]\nsteps = \"10\"\n",
       "f.toml:2: training.steps: wanted an integer, got the string \"10\""},
      {"[training]\nsteps = 1.5\n",
       "f.toml:2: training.steps: wanted an integer, got the float 1.5"},
      {"[optimizer]\nlr = nan\n", "f.toml:2: optimizer.lr: wanted a number >=0, got nan"},
      {"[checkpoint]\nenable = 1\n",
       "f.toml:2: checkpoint.enable: wanted true or false, got the integer 1"},
      {"[checkpoint]\nasync_mode = 'x'\n",
       "f.toml:2: checkpoint.async_mode: wanted disabled, async or async_with_pinned_mem, got the "
       "string \"x\""},
      {"[checkpoint]\nkeep_latest_k = 1\n",
       "checkpoint.keep_latest_k: wanted 0 (all) or at least 2, got 1: the only checkpoint would "
       "be "
       "deleted while the next one is written"},
      {"[training]\nbatch_size = 4\nlocal_batch_size = 8\n",
       "f.toml:3: training.local_batch_size: sets training.local_batch_size to 8, but "
       "training.batch_size (f.toml:2) sets it to 4: keep one of them"},
      {"training = 3\n", "f.toml:1: training: wanted a section, got the integer 3"},
      {"a = 1\nb = 2\n",
       "f.toml:1: a: no such key; `tokamak help all` lists the keys\n"
       "f.toml:2: b: no such key; `tokamak help all` lists the keys"},
      {"[optim]\nlr = 1\n", "f.toml:2: optim.lr: no such key; the nearest is optimizer.lr"},
      {"[training]\nsetps = 1\n",
       "f.toml:2: training.setps: no such key; the nearest is training.steps"},
      {"[training]\nfancy_schedule = 1\n",
       "f.toml:2: training.fancy_schedule: no such key; `tokamak help training` lists the keys"},
      {"[quantize.linear.float8]\nkeep_gate_up_in_fp8 = true\n",
       "f.toml:2: quantize.linear.float8.keep_gate_up_in_fp8: removed: "
       "activation_checkpoint.memory_budget saves memory and leaves the numerics alone"},
      {"[parallelism]\ncontext_parallel_load_balancer = ''\n",
       "f.toml:2: parallelism.context_parallel_load_balancer: wanted headtail or ptrr, got the "
       "string "
       "\"\""},
      {"[validation]\nsteps = 0\n",
       "f.toml:2: validation.steps: wanted an integer >=1 or -1, got 0"},
      {"[training]\nglobal_batch_size = 12\n",
       "training.global_batch_size: wanted a multiple of 8 (training.local_batch_size 8 times 1 "
       "data-parallel ranks), got 12"},
      {"[parallelism]\npipeline_parallel_microbatch_size = 4611686018427387904\n",
       "parallelism.pipeline_parallel_microbatch_size = 4611686018427387904: wanted at most "
       "2147483648"},
      {"[training]\nsteps = 1979-05-27\n",
       "f.toml:2: training.steps: wanted an integer, got a date or time"},
  };
  for (const Bad& bad : cases) EXPECT_EQ(error_of(bad.toml), bad.error);
}

TEST(Load, ReportsEveryKeyInTheOrderOfTheFile) {
  EXPECT_EQ(error_of("[training]\nzz = 1\nsteps = 'a'\ndataset = []\n[checkpoint]\nenable = 0\n"),
            "f.toml:2: training.zz: no such key; `tokamak help training` lists the keys\n"
            "f.toml:3: training.steps: wanted an integer, got the string \"a\"\n"
            "f.toml:4: training.dataset: wanted a string, got the list []\n"
            "f.toml:6: checkpoint.enable: wanted true or false, got the integer 0");
}

TEST(Load, ReportsSyntaxByLine) {
  EXPECT_EQ(error_of("[training]\nsteps =\n").rfind("f.toml:2: not valid TOML: ", 0), 0U);
  EXPECT_EQ(error_of("\n[training\n").rfind("f.toml:2: not valid TOML: ", 0), 0U);
}

TEST(Load, SurvivesTextThatTheParserAssertsAgainst) {
  EXPECT_NE(error_of("# a\n[\n\n[profiling]\n").find("f.toml:2: not valid TOML: "),
            std::string::npos);
  EXPECT_NE(error_of("[[\n").find("not valid TOML: "), std::string::npos);
  EXPECT_NE(error_of("x =27T07\xc6\x8d:0\n").find("f.toml:1: not valid TOML: "), std::string::npos);
  EXPECT_NE(error_of("x = 1 \xc3\xa9\n").find("f.toml:1: not valid TOML: "), std::string::npos);
}

TEST(Load, RefusesDepth) {
  std::string dots = "a";
  for (int i = 0; i < 100000; ++i) dots += ".a";
  const std::string brackets(100000, '[');
  const std::string want = "f.toml:1: nested deeper than a configuration can be";
  EXPECT_EQ(error_of(dots + " = 1\n").rfind(want, 0), 0U);
  EXPECT_EQ(error_of("[" + dots + "]\n").rfind(want, 0), 0U);
  EXPECT_EQ(error_of("a = " + brackets).rfind(want, 0), 0U);
  EXPECT_NE(error_of("[job]\ndescription = '" + std::string(1000, '.') + "'\n").rfind(want, 0), 0U);
}

TEST(Load, TakesTorchtitansTraps) {
  EXPECT_EQ(load("[activation_checkpoint]\nselective_ac_option = 2\n")
                .config.activation_checkpoint.selective_ac_option,
            "2");
  const Strings float8 = {"quantize.linear.float8"};
  EXPECT_EQ(load("[model]\nconverters = 'float8'\n").config.model.converters, float8);
  EXPECT_EQ(load("[float8]\nenable_float8_linear = true\n").config.model.converters, float8);
  EXPECT_EQ(load("[training]\nfp8_linear = ''\n").config.model.converters, Strings());
  EXPECT_EQ(
      load("[training]\nfp8_linear = true\n", {"--training.no_fp8_linear"}).config.model.converters,
      Strings());
  EXPECT_EQ(
      load("[training]\nfp8_linear = true\n", {"--model.converters=mx"}).config.model.converters,
      Strings{"quantize.linear.mx"});
  EXPECT_EQ(load("[optimizer]\nlr = 1\n").config.optimizer.lr, 1.0);
  EXPECT_TRUE(
      load("[metrics]\nenable_color_printing = false\n").config.metrics.disable_color_printing);
  EXPECT_EQ(load("[experimental]\npipeline_parallel_schedule = 'interleaved_1f1b'\n")
                .config.parallelism.pipeline_parallel_schedule,
            "Interleaved1F1B");
}

TEST(Load, NeedsWhatAnAcceptedNameCannotMean) {
  const LoadedConfig loaded = load(
      "[checkpoint]\ninterval_type = 'seconds'\n[training]\ndata_parallel_degree = -1\nwarmup_pct "
      "= 0.1\n"
      "[fault_tolerance]\nenable = true\n[float8]\nscaling_type_input = 'dynamic'\n",
      {"--fault_tolerance.no_enable"});
  Strings lines;
  for (const Need& need : loaded.needs) lines.push_back(needs_line(need));
  const Strings want = {
      "needs: checkpoint.interval_type = \"seconds\": set checkpoint.interval in steps",
      "needs: training.warmup_pct = 0.1: set lr_scheduler.warmup_steps to that share of "
      "training.steps"};
  EXPECT_EQ(lines, want);
}

TEST(Load, NotesWhatHasNoEffect) {
  const LoadedConfig loaded = load(
      "[training]\ngc_freq = 10\ncompile = true\ngc_debug = false\n"
      "[job]\nuse_for_integration_test = true\n[compile]\ncomponents = ['loss']\n",
      {"--optimizer.no_fused"});
  const Strings want = {
      "compile.components, training.compile: accepted without effect: everything is compiled ahead "
      "of time",
      "job.use_for_integration_test: accepted without effect: it marked files for torchtitan's own "
      "tests",
      "training.gc_freq: accepted without effect: there is no Python"};
  EXPECT_EQ(loaded.notes, want);
}

TEST(Overrides, EverySpelling) {
  const Config c =
      load("[training]\nsteps = 5\nbatch_size = 2\n",
           {"--training.steps=7", "--training.seq-len", "64", "--checkpoint.enable",
            "--metrics.no_enable_tensorboard", "--compile.enable=false",
            "--training.global_batch_size", "-1",
            "--checkpoint.exclude-from-loading=optimizer,dataloader",
            "--quantize.linear.float8.emulate", "--training.dataloader.num_workers=2",
            "--training.batch_size=4", "--parallelism.context_parallel_load_balancer=none",
            "--optimizer.no_decay=norm,bias", "--optimizer.lr=1e-3", "--debug.deterministic",
            "true"})
          .config;
  EXPECT_EQ(c.training.steps, 7);
  EXPECT_EQ(c.training.seq_len, 64);
  EXPECT_TRUE(c.checkpoint.enable);
  EXPECT_FALSE(c.metrics.enable_tensorboard);
  EXPECT_EQ(c.checkpoint.exclude_from_loading, (Strings{"optimizer", "dataloader"}));
  EXPECT_TRUE(c.quantize.linear.float8.emulate);
  EXPECT_EQ(c.training.local_batch_size, 4);
  EXPECT_FALSE(c.parallelism.context_parallel_load_balancer.has_value());
  EXPECT_EQ(c.optimizer.no_decay, (Strings{"norm", "bias"}));
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_TRUE(c.debug.deterministic);
}

TEST(Overrides, NameWhatIsWrong) {
  EXPECT_EQ(error_of("", {"--training.stepz=3"}),
            "--training.stepz: no such key; the nearest is training.steps");
  EXPECT_EQ(error_of("", {"--training.steps=x"}),
            "--training.steps: wanted an integer, got the string \"x\"");
  EXPECT_EQ(error_of("", {"--training.steps"}), "--training.steps: wanted a value");
  EXPECT_EQ(error_of("", {"x"}), "x: wanted --section.key=value");
  EXPECT_EQ(error_of("", {"--checkpoint.enable=maybe"}),
            "--checkpoint.enable: wanted true or false, got the string \"maybe\"");
}

TEST(Offload, WantsItsSwitchAndGiBOfADevice) {
  const std::string limit = "--training.offload_above_gib=";
  const std::string on = "--training.enable_cpu_offload";
  EXPECT_EQ(error_of("", {on, limit + "134.5"}), "no error");
  EXPECT_EQ(error_of("", {limit + "3"}),
            "training.offload_above_gib = 3: nothing is offloaded without "
            "training.enable_cpu_offload");
  EXPECT_EQ(error_of("", {on, limit + "1e30"}),
            "training.offload_above_gib = 1e+30: wanted GiB of one device, at most 1048576");
}

TEST(Degrees, ResolveOrRefuse) {
  Config c;
  c.parallelism.tensor_parallel_degree = 4;
  EXPECT_EQ(default_world_size(c), 4);
  EXPECT_EQ(resolve_degrees(c.parallelism, 8).dp_shard, 2);
  c.parallelism.data_parallel_type = "ddp";
  EXPECT_EQ(resolve_degrees(c.parallelism, 8).dp_replicate, 2);
  EXPECT_THROW(resolve_degrees(c.parallelism, 6), Error);
  EXPECT_THROW(resolve_degrees(c.parallelism, 2), Error);
  c.parallelism.pipeline_parallel_degree = int64_t{1} << 62;
  EXPECT_THROW(validate(c, default_world_size(c)), Error);
}

std::string degrees_error(const ParallelismConfig& p, int64_t world_size) {
  try {
    resolve_degrees(p, world_size);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Degrees, RefusalsSayTheArithmetic) {
  ParallelismConfig p;
  p.pipeline_parallel_degree = 2;
  p.data_parallel_shard_degree = 3;
  p.tensor_parallel_degree = 2;
  const std::string product =
      "parallelism.pipeline_parallel_degree 2 x "
      "parallelism.data_parallel_shard_degree 3 x "
      "parallelism.tensor_parallel_degree 2 = 12";
  EXPECT_EQ(degrees_error(p, 12), "");
  EXPECT_EQ(degrees_error(p, 8), product +
                                     ", but there are 8 ranks; with "
                                     "parallelism.data_parallel_shard_degree 2 (or -1, the rest) "
                                     "they fit");
  EXPECT_EQ(degrees_error(p, 6), product + ", but there are 6 ranks");
  p.data_parallel_shard_degree = -1;
  EXPECT_EQ(resolve_degrees(p, 8).dp_shard, 2);
  EXPECT_NE(degrees_error(p, 6).find("the other degrees make 4, but there are 6 ranks"),
            std::string::npos);
}

TEST(Needs, NamesWhatTheBuildLacks) {
  Capabilities can;
  can.models = {{"llama3", {"debugmodel", "8B"}}};
  EXPECT_TRUE(needs(Config(), can).empty());
  const Config c = load(
                       "[model]\nflavor = '9B'\nconverters = ['quantize.grouped_mm.mx']\n"
                       "norm_type = 'layernorm'\n[training]\ndataset = 'text'\n"
                       "[optimizer]\nname = 'Muon'\n")
                       .config;
  Strings lines;
  for (const Need& need : needs(c, can)) lines.push_back(needs_line(need));
  const Strings want = {
      "needs: model.flavor = \"9B\": not a flavor of llama3: debugmodel, 8B",
      "needs: model.converters = [\"quantize.grouped_mm.mx\"]: quantize.grouped_mm.mx is not "
      "built",
      // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one long line
      "needs: model.norm_type = \"layernorm\": only rmsnorm, fused_rmsnorm, compiled_rmsnorm are "
      "built",
      "needs: optimizer.name = \"Muon\": only AdamW, Adam are built",
      "needs: training.dataset_path = none: dataset text needs a file or folder"};
  EXPECT_EQ(lines, want);
}

TEST(Describe, WritesAFileThatReadsBack) {
  EXPECT_EQ(config_toml(Config()), "");
  const std::vector<std::string> overrides{"--optimizer.lr=1e-8",
                                           "--optimizer.no_decay=bias,norm",
                                           "--job.description=a \"b\" \\ c",
                                           "--training.global_batch_size=252",
                                           "--metrics.enable_tensorboard",
                                           "--quantize.linear.float8.filter_fqns=output",
                                           "--parallelism.pipeline_parallel_layers_per_stage=2"};
  const Config config = load("", overrides).config;
  const std::string text = config_toml(config);
  EXPECT_EQ(config_json(load(text).config), config_json(config)) << text;
  const Config odd = load("", {"--parallelism.context_parallel_load_balancer=none"}).config;
  EXPECT_FALSE(odd.parallelism.context_parallel_load_balancer);
  EXPECT_EQ(config_json(load(config_toml(odd)).config), config_json(odd)) << config_toml(odd);
}

TEST(Describe, DumpsAndHelps) {
  Config c;
  const std::string digest = config_digest(c);
  c.job.description = "other";
  EXPECT_EQ(config_digest(c), digest);
  c.optimizer.lr = 1;
  EXPECT_NE(config_digest(c), digest);
  EXPECT_NE(config_json(c).find("\"seq_len\": 2048"), std::string::npos);
  EXPECT_EQ(key_help("training.seq-len"),
            "training.seq_len\n  Tokens of one sequence.\n  type: int\n  default: 2048\n  values: "
            ">=1\n");
  EXPECT_EQ(key_help("training.batch_size"),
            "training.batch_size\n  now training.local_batch_size\n");
  EXPECT_THROW(key_help("nothing"), Error);
}

TEST(Schema, HasEveryKeyAndEveryAcceptedName) {
  const Json schema = Json::parse(config_schema());
  const auto property = [&](std::string_view name) -> Json {
    const Json* at = &schema;
    for (const std::string& part : split_list(name, '.')) at = &at->at("properties").at(part);
    return *at;
  };
  for (const Key& key : all_keys()) EXPECT_EQ(property(key.name)["description"], key.help);
  for (const AcceptedName& row : accepted_names()) EXPECT_TRUE(property(row.name)["deprecated"]);
  EXPECT_EQ(property("training.steps")["type"], "integer");
  EXPECT_EQ(property("metrics.log_freq")["minimum"], 1.0);
  EXPECT_EQ(property("job.device")["enum"], Json({"auto", "cpu", "cuda"}));
  EXPECT_EQ(property("model.layers")["anyOf"][1]["const"], "none");
  EXPECT_EQ(property("training")["additionalProperties"], false);
}

}  // namespace
}  // namespace tokamak
