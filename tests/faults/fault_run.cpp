#include "tests/faults/fault_run.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/draw.h"
#include "tests/fixtures/processes.h"
#include "tokamak_commit.h"  // the build writes it

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t hash_of_name(const std::string& name) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::string joined(const Words& rules) {
  std::string text;
  for (const std::string& rule : rules) text += (text.empty() ? "" : ";") + rule;
  return text;
}

}  // namespace

uint64_t fault_seed() {
  static const uint64_t kSeed = [] {
    std::string commit = TOK_COMMIT;  // its '+' says that there are changes
    while (commit.ends_with('+')) commit.pop_back();
    const uint64_t seed = number_from("TOK_FAULTS_SEED", hash_of_name(commit) % 1'000'000);
    fmt::print("TOK_FAULTS_SEED={} (commit {})\n", seed, commit);
    return seed;
  }();
  return kSeed;
}

bool is_drawn(const std::string& name, int one_in) {
  const char* const asked = std::getenv("TOK_FAULTS");  // NOLINT(concurrency-mt-unsafe)
  if (asked != nullptr && std::string(asked) == "all") return true;
  return Draw(fault_seed(), hash_of_name(name)).below(one_in) == 0;
}

bool is_saving(const std::filesystem::path& dump) {
  const auto folder = dump / "checkpoint";
  if (!path_exists(folder)) return false;
  const auto names = list_folder(folder);
  return std::any_of(names.begin(), names.end(), [](const auto& path) {
    return path.filename().string().find(".tmp-") != std::string::npos;
  });
}

Words words_of(const FaultyJob& job, const std::filesystem::path& dump) {
  const std::string preload = "LD_PRELOAD=" TOK_FAULT_SHIM;
  Words words{"env",    preload, "TOK_FAULT=" + joined(job.faults), TOK_PROGRAM,
              "launch", "-n",    std::to_string(job.num_ranks)};
  const Words train = train_words(
      "llama_tiny", dump,
      Words{"--training.seq_len=16", "--training.global_batch_size=4",
            "--training.local_batch_size=1", "--training.steps=12", "--checkpoint.enable",
            "--checkpoint.interval=4", "--checkpoint.last_save_model_only=false"} +
          job.train);
  return words + job.launch + Words{"--"} + Words(train.begin() + 1, train.end());
}

FaultRun::FaultRun(const FaultyJob& job) : job_(job), program_(words_of(job, scratch_.path())) {}

double FaultRun::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

ProgramResult FaultRun::expect_end(int exit_code, double seconds_allowed) {
  ProgramResult result = program_.wait();
  EXPECT_EQ(result.exit_code, exit_code) << result.err << result.out;
  EXPECT_LT(seconds(), seconds_allowed) << result.err;
  return result;
}

void FaultRun::expect_no_orphan() const {
  await([&] { return processes_with(dump()).empty(); }, "all processes to end", 5);
}

void FaultRun::expect_same_losses() const {
  const ScratchFolder whole;
  FaultyJob healthy = job_;
  healthy.faults.clear();
  const ProgramResult result = run_program(words_of(healthy, whole.path()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(timeless_metrics(dump()), timeless_metrics(whole.path()));
}

}  // namespace tokamak
