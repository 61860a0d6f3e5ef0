// Each error names the key that was set, and not another one.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/config/check.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

Strings lines_of(const std::string& text) {
  return split_list(text, '\n');
}

// Returns the lines of the error, or none.
Strings errors_of(const Strings& overrides) {
  try {
    const Config config = load_config(std::nullopt, overrides).config;
    validate(config, default_world_size(config));
  } catch (const Error& error) {
    return lines_of(error.what());
  }
  return {};
}

// Values that some rule may refuse.
Strings odd_values(const Key& key) {
  const std::string_view type = type_name(key);
  if (type == "bool") return {"true", "false", "maybe"};
  if (type == "int")
    return {"-2", "-1", "0", "1", "3", "5", "2147483649", "4611686018427387904", "x"};
  if (type == "float") return {"-1", "0", "1", "1e30", "nan", "x"};
  return {"x", "", "s3://bucket/x"};
}

TEST(Errors, OfOneOddValueNameItsKey) {
  const Strings contexts[] = {
      {},
      {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
       "--parallelism.data_parallel_shard_degree=2", "--training.global_batch_size=16"},
      {"--validation.enable", "--validation.dataset=synthetic", "--checkpoint.last_save_in_hf",
       "--checkpoint.initial_load_in_hf", "--training.enable_cpu_offload"}};
  int refused = 0;
  for (const Strings& context : contexts) {
    ASSERT_TRUE(errors_of(context).empty());
    for (const Key& key : all_keys()) {
      if (key.name == "job.config_file") continue;
      for (const std::string& value : odd_values(key)) {
        Strings words = context;
        words.push_back("--" + std::string(key.name) + "=" + value);
        const Strings errors = errors_of(words);
        EXPECT_LE(errors.size(), 1U) << words.back() << ": " << errors[1];
        if (errors.empty()) continue;
        ++refused;
        EXPECT_NE(errors[0].find(key.name), std::string::npos) << words.back() << ": " << errors[0];
      }
    }
  }
  EXPECT_GT(refused, 500);
}

struct Rule {
  Strings words;  ///< the last sets the key at fault
  const char* error;
};

TEST(Errors, OfEachRuleOfSeveralKeys) {
  const Rule rules[] = {
      {{"--training.seq_len=2147483649"}, "training.seq_len = 2147483649: wanted at most"},
      {{"--validation.enable", "--validation.seq_len=67108864"},
       "validation.local_batch_size = 8, validation.seq_len = 67108864: wanted at most 67108864"},
      {{"--training.seq_len=67108864"},
       "training.local_batch_size = 8, training.seq_len = 67108864: wanted at most 67108864"},
      {{"--training.global_batch_size=12"},
       "training.global_batch_size: wanted a multiple of 8 (training.local_batch_size 8 times 1"},
      {{"--parallelism.pipeline_parallel_degree=2",
        "--parallelism.pipeline_parallel_microbatch_size=3"},
       "parallelism.pipeline_parallel_microbatch_size: wanted a divisor of "
       "training.local_batch_size = 8, got 3"},
      {{"--training.tokens=many"}, "training.tokens: wanted a number of tokens such as 300M"},
      {{"--training.epochs=0"}, "training.epochs: wanted more than 0, got 0"},
      {{"--checkpoint.keep_latest_k=1"}, "checkpoint.keep_latest_k: wanted 0 (all) or at least 2"},
      {{"--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only=false"},
       "checkpoint.last_save_in_hf: needs checkpoint.last_save_model_only = true"},
      {{"--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_model_only=false"},
       "checkpoint.initial_load_in_hf: needs checkpoint.initial_load_model_only = true"},
      {{"--activation_checkpoint.selective_ac_option=0"},
       "activation_checkpoint.selective_ac_option: wanted \"op\" or a number of at least 1"},
      {{"--training.enable_cpu_offload", "--training.offload_above_gib=1e7"},
       "training.offload_above_gib = 10000000: wanted GiB of one device"},
      {{"--training.offload_above_gib=1"},
       "training.offload_above_gib = 1: nothing is offloaded without training.enable_cpu_offload"},
      {{"--optimizer.beta1=1"}, "optimizer.beta1: wanted less than 1, got 1"},
      {{"--optimizer.beta2=1"}, "optimizer.beta2: wanted less than 1, got 1"},
      {{"--model.dropout=1"}, "model.dropout: wanted less than 1, got 1"}};
  for (const Rule& rule : rules) {
    const Strings errors = errors_of(rule.words);
    ASSERT_EQ(errors.size(), 1U) << rule.error;
    EXPECT_EQ(errors[0].rfind(rule.error, 0), 0U) << errors[0];
  }
  // A new rule wants a row above.
  const std::string source = read_file(TOK_SOURCE_DIR "/tokamak/config/validate.cpp");
  size_t count = 0;
  for (size_t at = 0; (at = source.find("rules.require(", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, std::size(rules));
}

TEST(Errors, OfAMeshNameItsDegrees) {
  EXPECT_EQ(errors_of({"--parallelism.tensor_parallel_degree=2147483648"}),
            Strings{"parallelism.data_parallel_shard_degree -1 x "
                    "parallelism.tensor_parallel_degree 2147483648 on 16777217 ranks: wanted a "
                    "product of at most 16777216"});
}

TEST(Errors, OfPathsNameTheirScheme) {
  const std::pair<const char*, const char*> paths[] = {
      {"s3://bucket/x", "s3:// is not read here; copy the files to this machine, or mount them"},
      {"gs://bucket/x", "gs:// is not read here"},
      {"HF://owner/name", "hf:// is not built; tokamak download fetches"},
      {"https://host/x", "https:// is not built"},
      {"file:///data/x", "file:// is not built; leave out file://"},
      {"0.7 /data/a 0.3 s3://b", "got s3://b: s3:// is not read here"}};
  int keys = 0;
  for (const Key& key : all_keys()) {
    if (key.allowed != "path") continue;
    ++keys;
    for (const auto& [path, error] : paths) {
      Config config;
      const std::string got = set_value(config, key, std::string(path));
      EXPECT_EQ(got.rfind("wanted a local path, got ", 0), 0U) << key.name << ": " << got;
      EXPECT_NE(got.find(error), std::string::npos) << key.name << ": " << got;
    }
    for (const char* path : {"/a/b", "./s3:/x", "a b/c:d", "0.7 A 0.3 B", "~/x", "//x"}) {
      Config config;
      EXPECT_EQ(set_value(config, key, std::string(path)), "") << key.name << ": " << path;
    }
  }
  EXPECT_EQ(keys, 11);
  EXPECT_EQ(errors_of({"--job.description=see https://host/x"}), Strings());
}

TEST(Errors, OfDataPathsNameSchemesThatAreNoStores) {
  for (const char* path :
       {"s3://bucket/x", "gs://bucket/x", "hf:owner/name#x", "0.7 /a 0.3 s3://b"})
    EXPECT_EQ(errors_of({"--training.dataset_path=" + std::string(path)}), Strings()) << path;
  for (const char* path : {"hf://owner/name", "https://host/x", "0.5 s3://b 0.5 ftp://h/x"}) {
    const Strings errors = errors_of({"--validation.dataset_path=" + std::string(path)});
    ASSERT_EQ(errors.size(), 1U) << path;
    EXPECT_NE(errors[0].find(":// is not built"), std::string::npos) << errors[0];
  }
}

// Names of keys whose text is a path, by their last part.
TEST(Errors, OfPathsForgetNoKey) {
  for (const Key& key : all_keys()) {
    const std::string_view last = key.name.substr(key.name.rfind('.') + 1);
    const bool sounds_so = last.ends_with("_path") || last.ends_with("folder") ||
                           last.ends_with("_file") || last.ends_with("_csv");
    EXPECT_EQ(sounds_so, key.allowed.starts_with("path")) << key.name;
  }
}

TEST(Overrides, TakeNumbersBelowZeroAfterASpace) {
  const Strings words{"--parallelism.data_parallel_shard_degree", "-1", "--checkpoint.load_step",
                      "-1"};
  EXPECT_TRUE(errors_of(words).empty());
}

TEST(Values, ThatDocumentationSpellsOtherwise) {
  const Strings wanted{"dataloader", "lr_scheduler"};
  for (const char* toml : {"[checkpoint]\nexclude_from_loading = ['data_loader', 'lr_scheduler']\n",
                           "[checkpoint]\nexclude_from_loading = ['dataloader', 'lr_scheduler']\n"})
    EXPECT_EQ(parse_toml_text(toml, "f.toml").config.checkpoint.exclude_from_loading, wanted);
  EXPECT_EQ(errors_of({"--checkpoint.exclude_from_loading=model"}), Strings());
}

TEST(Notes, NameKeysThatDoNothing) {
  const std::pair<const char*, const char*> words[] = {
      {"--profiling.profiler_warmup=5", "profiling.profiler_warmup: accepted without effect: "},
      {"--debug.moe_force_load_balance", "debug.moe_force_load_balance: accepted without effect: "},
      {"--quantize.linear.float8.recipe_name=rowwise",
       "quantize.linear.float8.recipe_name: no effect in this run: "}};
  for (const auto& [word, note] : words) {
    const Strings notes = load_config(std::nullopt, Strings{word}).notes;
    ASSERT_EQ(notes.size(), 1U) << word;
    EXPECT_EQ(notes[0].rfind(note, 0), 0U) << notes[0];
  }
}

TEST(Needs, NameTheNearestDataset) {
  const Config config = load_config(std::nullopt, Strings{"--training.dataset=texts"}).config;
  const std::vector<Need> all = needs(config, Capabilities());
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].key, "training.dataset");
  EXPECT_NE(all[0].reason.find("; the nearest is text"), std::string::npos) << all[0].reason;
}

class Includes : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "parts"); }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    write_file_atomic(folder_ / name, text);
    return folder_ / name;
  }

  std::string error_of(const std::filesystem::path& file) const {
    try {
      load_config(file, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / fmt::format("tokamak_include_{}", ::getpid());
};

TEST_F(Includes, AFileWinsOverWhatItIncludesAndLaterOnesOverEarlier) {
  write("parts/model.toml", "[model]\nlayers = 3\n[training]\nsteps = 1\nseq_len = 64\n");
  write("parts/data.toml", "include = \"model.toml\"\n[training]\nsteps = 2\nseq_len = 128\n");
  write("late.toml", "[training]\nseq_len = 256\n");
  const auto run =
      write("run.toml", "include = [\"parts/data.toml\", \"late.toml\"]\n[training]\nsteps = 5\n");
  const Config c = load_config(run, Strings{"--metrics.log_freq=7"}).config;
  EXPECT_EQ(c.model.layers, 3);
  EXPECT_EQ(c.training.steps, 5);
  EXPECT_EQ(c.training.seq_len, 256);
  EXPECT_EQ(c.metrics.log_freq, 7);
  EXPECT_EQ(c.job.config_file, run.string());
}

TEST_F(Includes, BadOnesAreNamed) {
  const auto ring = write("ring.toml", "include = \"parts/ring.toml\"\n");
  write("parts/ring.toml", "include = \"../ring.toml\"\n");
  EXPECT_NE(error_of(ring).find("ring.toml includes itself"), std::string::npos) << error_of(ring);
  write("leaf.toml", "[training]\nsteps = 1\n");
  std::string many = "include = [";
  for (int i = 0; i < 65; ++i) many += "\"leaf.toml\", ";
  const auto wide = write("wide.toml", many + "]\n");
  EXPECT_NE(error_of(wide).find("include: more than 64 files"), std::string::npos)
      << error_of(wide);
  const auto missing = write("missing.toml", "include = \"none.toml\"\n");
  EXPECT_NE(error_of(missing).find("none.toml"), std::string::npos) << error_of(missing);
  const auto number = write("number.toml", "include = 3\n");
  EXPECT_NE(error_of(number).find("include: wanted a path or a list of paths"), std::string::npos)
      << error_of(number);
  write("parts/wrong.toml", "[training]\nstepz = 1\n");
  const auto wrong = write("wrong.toml", "include = \"parts/wrong.toml\"\n");
  EXPECT_NE(error_of(wrong).find("parts/wrong.toml:2: training.stepz"), std::string::npos)
      << error_of(wrong);
}

}  // namespace
}  // namespace tokamak
