// Published configurations through `train --dry-run`: a memory table, or the key that is not ours.
#include <chrono>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/data/parquet_lines.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kEvery = 20;

ProgramResult dry_run(const fs::path& file, const std::vector<std::string>& more = {}) {
  const ScratchFolder elsewhere;
  std::vector<std::string> words{TOK_PROGRAM, "train", file.string(), "--dry-run"};
  words.insert(words.end(), more.begin(), more.end());
  auto result = run_program(words, elsewhere.path());
  EXPECT_TRUE(list_folder(elsewhere.path()).empty()) << file << " left files behind";
  return result;
}

// Whether a line speaks of this file's line, or of a model that is not ours.
bool names_a_key(const std::string& err, const std::string& file) {
  return err.find(file + ":") != std::string::npos || err.find(" model.") != std::string::npos;
}

TEST(DryRun, ASampleOfPublishedFiles) {
  const fs::path folder = fs::path(TOK_SOURCE_DIR) / "../shared/configs";
  if (!path_exists(folder)) GTEST_SKIP() << folder << " is not there";
  std::vector<fs::path> files;
  for (const char* part : {"frontier", "torchtitan"}) {
    for (const fs::path& path : list_folder(folder / part)) {
      if (path.extension() == ".toml") files.push_back(path);
    }
  }
  size_t planned = 0;
  for (size_t i = 0; i < files.size(); i += kEvery) {
    const auto result = dry_run(files[i]);
    if (result.out.find("peak (planned = allocated)") != std::string::npos) {
      EXPECT_EQ(result.exit_code == 2, result.out.find("needs:") != std::string::npos ||
                                           result.out.find("does not fit") != std::string::npos)
          << files[i] << result.out;
      ++planned;
    } else {
      EXPECT_EQ(result.exit_code, 2) << files[i] << result.err;
      EXPECT_TRUE(names_a_key(result.err, files[i].string())) << files[i] << result.err;
    }
  }
  EXPECT_GT(planned, files.size() / kEvery / 2);
}

TEST(DryRun, PlansForAGpuAlsoWhereThereIsNone) {
  std::vector<std::string> words = {TOK_PROGRAM,         "train",
                                    "--dry-run",         "--job.device=cuda",
                                    "--model.flavor=8B", "--training.seq_len=8192"};
  const auto result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("planned for sm_"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("peak (planned = allocated)"), std::string::npos) << result.out;

  words[3] = "--job.device=cpu";
  words.emplace_back("--world-size=1");
  const auto on_cpu = run_program(words);
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  EXPECT_EQ(on_cpu.out.find("planned for"), std::string::npos) << on_cpu.out;
}

TEST(DryRun, SaysWhetherTheRunFitsHere) {
  const ScratchFolder folder;
  std::vector<std::string> words = {TOK_PROGRAM,
                                    "train",
                                    "--dry-run",
                                    "--job.device=cpu",
                                    "--training.dataset=synthetic",
                                    "--training.seq_len=64",
                                    "--checkpoint.enable",
                                    "--job.dump_folder=" + (folder.path() / "not/yet").string()};
  const auto small = run_program(words);
  EXPECT_EQ(small.exit_code, 0) << small.out << small.err;
  EXPECT_NE(small.out.find(" GiB free: fits\n"), std::string::npos) << small.out;
  // 6,163,712 parameters and two moments each, all in fp32.
  EXPECT_NE(small.out.find("checkpoints of 0.07 GiB, "), std::string::npos) << small.out;
  EXPECT_TRUE(list_folder(folder.path()).empty());

  words.emplace_back("--model.flavor=405B");
  const auto large = run_program(words);
  EXPECT_EQ(large.exit_code, 2) << large.out << large.err;
  EXPECT_NE(large.out.find(" GiB free: does not fit\n"), std::string::npos) << large.out;
  words.emplace_back("--world-size=1");
  const auto elsewhere = run_program(words);
  EXPECT_EQ(elsewhere.exit_code, 0) << elsewhere.out << elsewhere.err;
  EXPECT_EQ(elsewhere.out.find("fit"), std::string::npos) << elsewhere.out;
}

// In an allocation that ends after N seconds.
class Allocation {
 public:
  ProgramResult dry_run(int64_t left_s, const std::string& steps) {
    const auto now = std::chrono::system_clock::now() + std::chrono::seconds(left_s);
    return run("SLURM_JOB_END_TIME=" + std::to_string(std::chrono::system_clock::to_time_t(now)),
               {"train", "--dry-run", "--job.device=cpu", "--training.dataset=synthetic",
                "--training.seq_len=64", "--training.steps=" + steps});
  }

  ProgramResult run(const std::string& variable, std::vector<std::string> words) {
    words.insert(
        words.begin(),
        {"env", variable, "TOKAMAK_CACHE=" + (folder_.path() / "cache").string(), TOK_PROGRAM});
    return run_program(words, folder_.path());
  }

 private:
  ScratchFolder folder_;
};

TEST(DryRun, SaysWhetherTheRunEndsWithinTheAllocation) {
  Allocation slurm;
  const auto unknown = slurm.dry_run(5402, "10");
  EXPECT_EQ(unknown.exit_code, 0) << unknown.out << unknown.err;
  EXPECT_NE(unknown.out.find(" min left of the allocation; how long"), std::string::npos)
      << unknown.out;
  ASSERT_EQ(slurm.run("LANG=C", {"doctor"}).exit_code, 0);
  const auto fits = slurm.dry_run(86400, "10");
  EXPECT_EQ(fits.exit_code, 0) << fits.out << fits.err;
  EXPECT_NE(fits.out.find("for 10 steps, 24 hours left of the allocation: fits\n"),
            std::string::npos)
      << fits.out;
  const auto does_not = slurm.dry_run(-1, "1000000");
  EXPECT_EQ(does_not.exit_code, 2) << does_not.out << does_not.err;
  EXPECT_NE(does_not.out.find("0 ms left of the allocation: does not fit\n"), std::string::npos)
      << does_not.out;
}

TEST(DryRun, WhatIsMissingHereIsAUsersMistake) {
  const auto missing = run_program({TOK_PROGRAM, "train", "--dry-run", "--job.device=cpu",
                                    "--training.dataset=text", "--training.dataset_path=nowhere"});
  EXPECT_EQ(missing.exit_code, 2) << missing.out;
  EXPECT_NE(missing.out.find("needs: training.dataset_path"), std::string::npos) << missing.out;
}

TEST(DryRun, ParquetNeedsABuildWithArrow) {
  const ScratchFolder scratch;
  FileWriter(scratch.path() / "a.parquet").write("PAR1");
  const auto result = run_program({TOK_PROGRAM, "train", "--dry-run", "--job.device=cpu",
                                   "--training.dataset=c4", "--training.dataset_path=a.parquet"},
                                  scratch.path());
  const std::string needs = "needs: training.dataset_path = a.parquet: " + why_no_parquet();
  EXPECT_EQ(result.out.find(needs + "\n") != std::string::npos, !why_no_parquet().empty())
      << result.out;
  EXPECT_EQ(result.exit_code, 2) << "there is no tokenizer either";
}

TEST(DryRun, SaysInWhatWeightsTravelBetweenShards) {
  const auto plan = [](const std::string& word) {
    return run_program({TOK_PROGRAM, "plan", "--why", "--world-size=2",
                        "--model.converters=quantize.linear.float8", "--training.dataset=synthetic",
                        "--quantize.linear.float8." + word})
        .out;
  };
  const std::string codes = plan("enable_fsdp_float8_all_gather");
  EXPECT_NE(codes.find("; weights travel in fp8"), std::string::npos) << codes;
  EXPECT_EQ(codes.find("needs: quantize"), std::string::npos) << codes;
  const std::string rows = plan("recipe_name=rowwise");
  EXPECT_NE(rows.find("; weights travel in bfloat16"), std::string::npos) << rows;
}

// The cost grows with the kinds of ranks, not with the ranks.
TEST(DryRun, AllRanksAreProvenToFitTogether) {
  const std::string proof =
      "proof: the plans order all tasks that touch the same bytes, and the collectives of 4,096 "
      "ranks of 2 kinds meet (8 ranks planned)\n";
  for (const auto& [verb, flag] : {std::pair("plan", "--check"), {"train", "--dry-run"}}) {
    const auto result = run_program(
        {TOK_PROGRAM, verb, flag, "--training.dataset=synthetic", "--job.device=cuda",
         "--model.flavor=8B", "--training.local_batch_size=1", "--world-size=4096",
         "--parallelism.tensor_parallel_degree=4", "--parallelism.pipeline_parallel_degree=2",
         "--parallelism.data_parallel_replicate_degree=8"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find(proof), std::string::npos) << result.out;
  }
  const auto alone = run_program({TOK_PROGRAM, "plan", "--check", "--training.dataset=synthetic"});
  EXPECT_NE(alone.out.find("proof: the plan orders all tasks that touch the same bytes\n"),
            std::string::npos)
      << alone.out;
}

TEST(DryRun, LargeModelsArePlannedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_program({TOK_PROGRAM, "train", "--dry-run", "--model.flavor=405B",
                                   "--training.seq_len=8192", "--activation_checkpoint.mode=full",
                                   "--world-size=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("405853388800 parameters"), std::string::npos) << result.out;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(DryRun, SaysWhichGpusMultiplyMxfp8) {
  std::vector<std::string> words = {TOK_PROGRAM,
                                    "train",
                                    "--dry-run",
                                    "--job.device=cpu",
                                    "--model.converters=mx",
                                    "--training.dataset=synthetic"};
  const auto on_cpu = run_program(words);
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  EXPECT_EQ(on_cpu.out.find("needs:"), std::string::npos) << on_cpu.out;
  words[3] = "--job.device=cuda";
  const auto on_gpu = run_program(words);
  EXPECT_EQ(on_gpu.exit_code, 0) << on_gpu.err;
  if (on_gpu.out.find("sm_90") != std::string::npos) {
    EXPECT_NE(on_gpu.out.find("needs: model.converters = [\"quantize.linear.mx\"]: mxfp8 matmuls "
                              "want sm_100 or newer, this is sm_90; quantize.linear.mx.emulate = "
                              "true computes them in fp32"),
              std::string::npos)
        << on_gpu.out;
  }
  words.emplace_back("--quantize.linear.mx.emulate");
  const auto emulated = run_program(words);
  EXPECT_EQ(emulated.exit_code, 0) << emulated.err;
  EXPECT_EQ(emulated.out.find("want sm_100"), std::string::npos) << emulated.out;
  EXPECT_NE(emulated.out.find("peak (planned = allocated)"), std::string::npos) << emulated.out;
}

// Pairs of a dry run and the run: both end with the same line.
class SameLine : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return scratch_.path() / name; }

  void write(const std::string& name, const std::string& text) const {
    make_folders(at(name).parent_path());
    FileWriter(at(name)).write(text);
  }

  Words words(const Words& more) const {
    return train_words("llama_tiny", at("out"),
                       Words{"--job.device=cpu", "--training.steps=1"} + more);
  }

  void expect(const std::string& part, const Words& more) const {
    const auto dry = run_program(words(more) + Words{"--dry-run"}, scratch_.path());
    const auto real = run_program(words(more), scratch_.path());
    EXPECT_EQ(dry.exit_code, 2) << part << dry.out;
    EXPECT_NE(real.err.find(part), std::string::npos) << real.err;
    EXPECT_EQ(count_lines(real.err), 1) << real.err;
    EXPECT_NE(dry.err.find(real.err), std::string::npos) << dry.err << real.err;
    EXPECT_NE(dry.out.find("peak (planned = allocated)"), std::string::npos) << dry.out;
  }

  Words data(const std::string& dataset, const std::string& path) const {
    return {"--training.dataset=" + dataset, "--training.dataset_path=" + path,
            "--model.tokenizer_path=bytes"};
  }

  ScratchFolder scratch_;
};

TEST_F(SameLine, OfData) {
  write("train.bin", std::string(4000, '\1'));
  write("notes/README.md", "nothing to learn\n");
  write("short.u16", std::string(20, '\1'));
  write("outside.u16", std::string(4000, '\7'));
  write("fields.jsonl", "{\"content\": \"abc\"}\n");
  expect("a bare stream of ids wants the extension .u16 or .u32", data("tokens", "train.bin"));
  expect("no *.u16, *.u32 or *.bin token files in this folder", data("tokens", "notes"));
  expect("no *.json, *.jsonl", data("c4", "notes"));
  expect("wanted at least one window of 33 tokens", data("tokens", "short.u16"));
  expect("id 1799 is outside the model's vocabulary of 512", data("tokens", "outside.u16"));
  expect("text", data("c4", "fields.jsonl"));
  expect(
      "is outside the model's vocabulary of 512: wanted the model's own tokenizer, or "
      "--model.vocab above that id",
      {"--training.dataset=shakespeare"});
  const Words validation{"--validation.enable", "--validation.seq_len=32"};
  expect("a bare stream of ids",
         validation + Words{"--validation.dataset=tokens", "--validation.dataset_path=train.bin"});
  expect("validation.steps = -1: validation.dataset \"synthetic\" has no end",
         validation + Words{"--validation.dataset=synthetic"});
}

TEST_F(SameLine, OfCheckpointsAndFolders) {
  const Words saves{"--checkpoint.enable", "--checkpoint.interval=1"};
  ASSERT_EQ(run_program(words(saves), scratch_.path()).exit_code, 0);
  const Words resumes = saves + Words{"--training.steps=3"};
  expect("checkpoint.load_step = 7: there is no", resumes + Words{"--checkpoint.load_step=7"});
  expect("which is not in the configured model", resumes + Words{"--model.layers=1"});
  expect("the run needs", resumes + Words{"--model.mlp_dim=64"});
  expect("windows of seq_len 32, this run's is 16", resumes + Words{"--training.seq_len=16"});
  expect("gpt2", {"--checkpoint.initial_load_path=" + oracle_folder("gpt2_tiny").string()});
  write("notes/README.md", "no weights\n");
  expect("notes", {"--checkpoint.initial_load_path=notes"});
  write("file", "");
  expect("cannot create folder file", {"--job.dump_folder=file"});
  write("out/file", "");
  expect("cannot create folder", {"--checkpoint.enable", "--checkpoint.folder=file"});
  // The run's folder also has the time in its name.
  for (const Words& more : {Words{"--dry-run"}, Words{}}) {
    const auto result =
        run_program(words({"--metrics.enable_tensorboard", "--metrics.save_tb_folder=file"}) + more,
                    scratch_.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("cannot create folder " + at("out/file").string()), result.err.npos)
        << result.err;
  }
  expect("there is no folder", {"--job.save_config_file=none/c.json"});
}

TEST_F(SameLine, ARunThatIsDoneIsRefusedByNeither) {
  const Words saves{"--checkpoint.enable"};
  ASSERT_EQ(run_program(words(saves), scratch_.path()).exit_code, 0);
  const auto dry = run_program(words(saves) + Words{"--dry-run"}, scratch_.path());
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_NE(dry.err.find("note: Training already completed: step 1 of"), std::string::npos)
      << dry.err;
}

// A model of own sizes follows its tokenizer; any other has to be told.
TEST_F(SameLine, OwnSizesTakeTheVocabularyOfALargerTokenizer) {
  const Words own = words({"--training.dataset=shakespeare", "--model.layers=1"});
  const std::string note = "note: model.vocab = 2048: taken from the tokenizer";
  for (const Words& more : {Words{"--dry-run"}, Words{}}) {
    const auto result = run_program(own + more, scratch_.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find(note), std::string::npos) << result.err;
  }
  const auto told = run_program(own + Words{"--model.vocab=2050", "--dry-run"}, scratch_.path());
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_EQ(told.err.find(note), std::string::npos) << told.err;
}

// The demo runs as tools/demo.sh runs it on a machine that cannot get the package of the text.
TEST(DryRun, TheDemoNeedsNothingWithTheEmbeddedText) {
  const auto result = dry_run(fs::path(TOK_SOURCE_DIR) / "configs/demo.toml",
                              {"--training.dataset=shakespeare", "--model.vocab=2048"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("needs:"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace tokamak
