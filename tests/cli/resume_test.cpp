// A run that stops and goes on gives the bits of the run that never stopped.
#include <csignal>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

const Words kResumable{"--checkpoint.enable", "--checkpoint.last_save_model_only=false"};

ProgramResult run_ok(const Words& words) {
  ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

// Text that a byte tokenizer can read, several documents.
void write_text(const fs::path& path, int seed) {
  std::ofstream file(path);
  for (int i = 0; i < 400; ++i) file << "line " << i * seed % 97 << " of a small text\n";
}

struct Case {
  const char* name;
  const char* model;
  Words words;
};

class Resume : public ::testing::TestWithParam<Case> {
 protected:
  Words words(const fs::path& dump, const Words& more) const {
    Words all = train_words(GetParam().model, dump, GetParam().words + kResumable + more);
    for (std::string& word : all) {
      const size_t at = word.find('@');
      for (size_t i = at; i != std::string::npos; i = word.find('@'))
        word.replace(i, 1, scratch_.path().string() + "/");
    }
    return all;
  }

  void SetUp() override {
    write_tokens(scratch_.path() / "a.u32", 3000, 380);
    write_tokens(scratch_.path() / "b.u32", 1000, 300);
    write_text(scratch_.path() / "a.txt", 3);
    write_text(scratch_.path() / "b.txt", 5);
  }

  ScratchFolder scratch_;
};

TEST_P(Resume, AfterACheckpointTheBitsAreTheSame) {
  const fs::path whole = scratch_.path() / "whole";
  const fs::path parts = scratch_.path() / "parts";
  run_ok(words(whole, {"--checkpoint.interval=100"}));
  run_ok(words(parts, {"--checkpoint.interval=4"}));
  fs::remove_all(parts / "checkpoint/step-6");
  const auto resumed = run_ok(words(parts, {"--checkpoint.interval=100"}));
  EXPECT_NE(resumed.out.find("step-4"), std::string::npos) << resumed.out;
  EXPECT_EQ(timeless_metrics(parts), timeless_metrics(whole));
  EXPECT_EQ(timeless_metrics(whole).size(), 6U);
  EXPECT_EQ(read_tensors(parts / "checkpoint/step-6"), read_tensors(whole / "checkpoint/step-6"));
  if (path_exists(whole / "validation.jsonl")) {
    EXPECT_EQ(timeless_validation(parts), timeless_validation(whole));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Resume,
    ::testing::Values(
        Case{"accumulated",
             "llama_tiny",
             {"--training.global_batch_size=6", "--training.dataset=tokens",
              "--training.dataset_path=@a.u32"}},
        Case{"dropout",
             "gpt2_tiny",
             {"--model.dropout=0.1", "--training.global_batch_size=4", "--training.threads=2"}},
        Case{"text",
             "llama_tiny",
             {"--training.dataset=text", "--training.dataset_path=@a.txt",
              "--model.tokenizer_path=bytes"}},
        Case{"shuffled_text",
             "llama_tiny",
             {"--training.dataset=text", "--training.dataset_path=@a.txt",
              "--training.shuffle_seed=5", "--model.tokenizer_path=bytes"}},
        Case{"mix",
             "llama_tied",
             {"--training.dataset=tokens", "--training.dataset_path=0.7 @a.u32 0.3 @b.u32",
              "--training.shuffle_seed=1"}},
        Case{"text_mix",
             "llama_tied",
             {"--training.dataset=text", "--training.dataset_path=0.6 @a.txt 0.4 @b.txt",
              "--model.tokenizer_path=bytes"}},
        Case{"validated",
             "llama_tiny",
             {"--validation.enable", "--validation.dataset=tokens",
              "--validation.dataset_path=@b.u32", "--validation.freq=2", "--validation.seq_len=32",
              "--validation.local_batch_size=3"}},
        Case{"bfloat16",
             "llama_tiny",
             {"--training.mixed_precision_param=bfloat16", "--training.threads=2"}},
        Case{"adam", "gpt2_tiny", {"--optimizer.name=Adam", "--training.max_norm=0.1"}},
        Case{"bf16_moments",
             "llama_tied",
             {"--optimizer.state_dtype=bfloat16", "--training.mixed_precision_param=bfloat16"}}),
    [](const auto& of) { return std::string(of.param.name); });

// The number of steps of the only checkpoint there.
int64_t saved_step(const fs::path& checkpoints) {
  int64_t step = -1;
  for (const fs::path& path : list_folder(checkpoints)) {
    const std::string name = path.filename().string();
    if (name.rfind("step-", 0) == 0) step = std::max(step, int64_t{std::stoi(name.substr(5))});
  }
  return step;
}

TEST(Signal, TerminateSavesAResumableCheckpointAndExits85) {
  const ScratchFolder scratch;
  const fs::path whole = scratch.path() / "whole";
  const fs::path parts = scratch.path() / "parts";
  // The last save would be of the model only, as a Hugging Face folder.
  const Words common{"--checkpoint.enable", "--checkpoint.last_save_in_hf", "--model.dropout=0.1"};
  {
    RunningProgram run(train_words("gpt2_tiny", parts, common + Words{"--training.steps=1000000"}));
    await([&] { return steps_logged(parts) >= 3; }, "three steps");
    run.send(SIGTERM);
    const auto result = run.wait();
    EXPECT_EQ(result.exit_code, 85) << result.err;
    EXPECT_EQ(result.err, "");
  }
  const int64_t step = saved_step(parts / "checkpoint");
  ASSERT_GE(step, 3);
  EXPECT_EQ(steps_logged(parts), step);
  const Words steps{fmt::format("--training.steps={}", step + 3)};
  run_ok(train_words("gpt2_tiny", parts, common + steps));
  run_ok(train_words("gpt2_tiny", whole, common + steps));
  EXPECT_EQ(timeless_metrics(parts), timeless_metrics(whole));
  const std::string last = fmt::format("checkpoint/step-{}", step + 3);
  EXPECT_EQ(read_tensors(parts / last), read_tensors(whole / last));
}

TEST(Checkpoint, ARunAtItsEndSaysSoAndExits0) {
  const ScratchFolder scratch;
  const Words words = train_words("llama_tiny", scratch.path(), kResumable);
  run_ok(words);
  const auto before = timeless_metrics(scratch.path());
  const auto again = run_ok(words);
  EXPECT_NE(again.out.find("already"), std::string::npos) << again.out;
  EXPECT_EQ(timeless_metrics(scratch.path()), before);
}

TEST(Checkpoint, AModelWithFewerLayersDoesNotGoOn) {
  const ScratchFolder scratch;
  run_ok(train_words("llama_tiny", scratch.path(), kResumable));
  const auto tensors = read_tensors(scratch.path() / "checkpoint/step-6");
  const auto fewer = run_program(train_words(
      "llama_tiny", scratch.path(), kResumable + Words{"--training.steps=8", "--model.layers=1"}));
  EXPECT_EQ(fewer.exit_code, 2);
  EXPECT_NE(fewer.err.find("model.layers.1."), std::string::npos) << fewer.err;
  EXPECT_EQ(read_tensors(scratch.path() / "checkpoint/step-6"), tensors);
}

TEST(Checkpoint, OnlyTheLatestAreKept) {
  const ScratchFolder scratch;
  run_ok(train_words("llama_tiny", scratch.path(),
                     kResumable + Words{"--checkpoint.interval=1", "--checkpoint.keep_latest_k=2",
                                        "--checkpoint.enable_first_step_checkpoint"}));
  EXPECT_FALSE(path_exists(scratch.path() / "checkpoint/step-4"));
  EXPECT_TRUE(path_exists(scratch.path() / "checkpoint/step-5"));
  EXPECT_TRUE(path_exists(scratch.path() / "checkpoint/step-6"));
}

TEST(Checkpoint, FirstStepAndChosenStep) {
  const ScratchFolder scratch;
  const Words words = train_words(
      "llama_tiny", scratch.path(),
      kResumable + Words{"--checkpoint.enable_first_step_checkpoint", "--checkpoint.interval=3"});
  run_ok(words);
  for (const char* step : {"step-1", "step-3", "step-6"})
    EXPECT_TRUE(path_exists(scratch.path() / "checkpoint" / step)) << step;
  const auto tensors = read_tensors(scratch.path() / "checkpoint/step-6");
  const auto metrics = timeless_metrics(scratch.path());
  const auto again = run_ok(words + Words{"--checkpoint.load_step=1"});
  EXPECT_NE(again.out.find("starts at step 2"), std::string::npos) << again.out;
  EXPECT_EQ(read_tensors(scratch.path() / "checkpoint/step-6"), tensors);
  EXPECT_EQ(timeless_metrics(scratch.path()), metrics);
  const auto missing = run_program(words + Words{"--checkpoint.load_step=2"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("checkpoint.load_step"), std::string::npos) << missing.err;
}

TEST(Checkpoint, AModelOnlyEndIsNoPlaceToGoOnFrom) {
  const ScratchFolder scratch;
  const Words words = train_words(
      "llama_tiny", scratch.path(),
      {"--checkpoint.enable", "--checkpoint.interval=4", "--checkpoint.last_save_model_only"});
  run_ok(words);
  const auto tensors = read_tensors(scratch.path() / "checkpoint/step-6");
  for (const auto& [name, bytes] : tensors) EXPECT_EQ(name.find("optimizer."), std::string::npos);
  // A run that goes on takes the newest resumable one.
  const auto longer = run_ok(words + Words{"--training.steps=8"});
  EXPECT_NE(longer.out.find("starts at step 5"), std::string::npos) << longer.out;
  EXPECT_EQ(timeless_metrics(scratch.path()).size(), 8U);
}

TEST(Checkpoint, SeedCheckpointIsWhereARunStarts) {
  const ScratchFolder scratch;
  const fs::path fresh = scratch.path() / "fresh";
  const fs::path seeded = scratch.path() / "seeded";
  const auto made = run_ok(
      train_words("gpt2_tiny", seeded, kResumable + Words{"--checkpoint.create_seed_checkpoint"}));
  EXPECT_TRUE(path_exists(seeded / "checkpoint/step-0")) << made.out;
  run_ok(train_words("gpt2_tiny", seeded, kResumable));
  run_ok(train_words("gpt2_tiny", fresh, kResumable));
  EXPECT_EQ(timeless_metrics(seeded), timeless_metrics(fresh));
  EXPECT_EQ(read_tensors(seeded / "checkpoint/step-6"), read_tensors(fresh / "checkpoint/step-6"));
}

TEST(Checkpoint, PartsCanBeLeftOut) {
  const ScratchFolder scratch;
  const fs::path dump = scratch.path() / "run";
  write_tokens(scratch.path() / "a.u32", 3000, 380);
  const Words data{"--training.dataset=tokens",
                   "--training.dataset_path=" + (scratch.path() / "a.u32").string()};
  const Words common = kResumable + data + Words{"--checkpoint.interval=4"};
  run_ok(train_words("llama_tiny", dump, common));
  const auto whole = timeless_metrics(dump);
  for (const std::string part : {"optimizer", "data_loader", "lr_scheduler", "model"}) {
    fs::remove_all(dump / "checkpoint/step-6");
    run_ok(train_words("llama_tiny", dump,
                       common + Words{"--checkpoint.exclude_from_loading=" + part}));
    const auto now = timeless_metrics(dump);
    ASSERT_EQ(now.size(), 6U) << part;
    EXPECT_EQ(now[4] == whole[4], part == "optimizer" || part == "lr_scheduler") << part;
    EXPECT_EQ(now[5] == whole[5], part == "lr_scheduler") << part;
  }
}

// As in torchtitan: what goes on from there goes on with the new schedule.
TEST(Checkpoint, AScheduleThatIsLeftOutBeginsAgain) {
  const ScratchFolder scratch;
  const Words words = train_words(
      "llama_tiny", scratch.path(),
      kResumable + Words{"--lr_scheduler.total_steps=8", "--lr_scheduler.warmup_steps=2",
                         "--lr_scheduler.min_lr_factor=0", "--optimizer.lr=0.06"});
  run_ok(words + Words{"--training.steps=4"});
  run_ok(words + Words{"--training.steps=6", "--checkpoint.exclude_from_loading=lr_scheduler"});
  run_ok(words + Words{"--training.steps=8"});
  std::vector<double> rates;
  for (const Json& line : read_json_lines(scratch.path() / "metrics.jsonl"))
    rates.push_back(line.at("lr").get<double>());
  ASSERT_EQ(rates.size(), 8U);
  const double begin[] = {0.03, 0.06, 0.06, 0.05};
  for (size_t i = 0; i < rates.size(); ++i) EXPECT_NEAR(rates[i], begin[i % 4], 1e-9) << i + 1;
}

TEST(Weights, OfTheAssetsAreWhereARunStartsThatAsksForHuggingFaces) {
  const ScratchFolder scratch;
  const Words asked[] = {
      {},
      {"--checkpoint.initial_load_in_hf"},
      {"--checkpoint.initial_load_path=" + oracle_folder("llama_tiny").string()}};
  std::vector<std::string> steps;
  for (size_t i = 0; i < std::size(asked); ++i) {
    const fs::path dump = scratch.path() / std::to_string(i);
    const auto result =
        run_ok(train_words("llama_tiny", dump, Words{"--training.steps=1"} + asked[i]));
    const bool says = result.out.find("Loading the weights of " +
                                      oracle_folder("llama_tiny").string()) != std::string::npos;
    EXPECT_EQ(says, i > 0) << result.out;
    steps.push_back(timeless_metrics(dump).at(0));
  }
  EXPECT_NE(steps[0], steps[1]);
  EXPECT_EQ(steps[1], steps[2]);
}

// Moments go on in another dtype, with a line, and the run then saves that one.
TEST(Checkpoint, MomentsChangeTheirDtype) {
  const ScratchFolder scratch;
  const std::string type = "--optimizer.state_dtype=";
  for (const auto& [before, after, said] :
       {std::tuple{"float32", "bfloat16", "moments are float32; they go on in bfloat16"},
        std::tuple{"bfloat16", "float32", "moments are bfloat16; they go on in float32"}}) {
    const fs::path dump = scratch.path() / before;
    run_ok(train_words("llama_tiny", dump, kResumable + Words{type + before}));
    const Words more{"--training.steps=9", type + after};
    const auto resumed = run_ok(train_words("llama_tiny", dump, kResumable + more));
    EXPECT_NE(resumed.out.find(said), std::string::npos) << resumed.out;
    EXPECT_EQ(steps_logged(dump), 9);
    const auto tensors = read_tensors(dump / "checkpoint/step-9");
    const auto saved = read_tensors(dump / "checkpoint/step-6");
    const std::string name = "optimizer.v.model.norm.weight";
    const size_t wide = std::string(after) == "float32" ? 4 : 2;
    EXPECT_EQ(tensors.at(name).size() / wide, saved.at(name).size() / (6 - wide));
  }
}

TEST(Recompute, EveryModeGivesTheSameBits) {
  const ScratchFolder scratch;
  for (const char* model : {"llama_tied", "gpt2_tiny"}) {
    std::vector<std::string> want;
    std::map<std::string, std::string> tensors;
    const std::vector<Words> modes{
        {"--activation_checkpoint.mode=none"},
        {"--activation_checkpoint.mode=none", "--activation_checkpoint.no_emit_on_backward"},
        {"--activation_checkpoint.mode=full"},
        {"--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=1"},
        {"--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=2"},
        {"--activation_checkpoint.mode=selective",
         "--activation_checkpoint.selective_ac_option=op"}};
    for (size_t i = 0; i < modes.size(); ++i) {
      const fs::path dump = scratch.path() / fmt::format("{}_{}", model, i);
      run_ok(train_words(model, dump, modes[i] + kResumable + Words{"--model.dropout=0.1"}));
      if (i == 0) {
        want = timeless_metrics(dump);
        tensors = read_tensors(dump / "checkpoint/step-6");
      }
      EXPECT_EQ(timeless_metrics(dump), want) << modes[i].back();
      EXPECT_EQ(read_tensors(dump / "checkpoint/step-6"), tensors) << modes[i].back();
    }
  }
}

TEST(Accumulation, TheSplitDoesNotMatter) {
  const ScratchFolder scratch;
  std::vector<double> want;
  for (const int local : {8, 4, 2, 1}) {
    const fs::path dump = scratch.path() / fmt::format("{}", local);
    run_ok(train_words("gpt2_tiny", dump,
                       {"--training.global_batch_size=8", "--model.dropout=0.2",
                        fmt::format("--training.local_batch_size={}", local)}));
    std::vector<double> losses;
    for (const Json& line : read_json_lines(dump / "metrics.jsonl"))
      losses.push_back(line["loss"].get<double>());
    if (want.empty()) want = losses;
    ASSERT_EQ(losses.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(losses[i], want[i], 1e-5) << local;
  }
}

}  // namespace
}  // namespace tokamak
