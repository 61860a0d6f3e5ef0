#include "tokamak/train/run_folder.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using testing::error_of;
using testing::ScratchFolder;

FolderHolder holder(const std::string& job, int64_t restart) {
  FolderHolder me = this_process();
  me.job = job;
  me.restart = restart;
  return me;
}

TEST(RunFolder, ASecondProcessIsRefusedByTheNameOfTheFirst) {
  const ScratchFolder scratch;
  const RunFolder first(scratch.path(), holder("Slurm job 7", 0));
  EXPECT_EQ(first.attempt(), 1);
  for (const auto& other : {holder("", 0), holder("Slurm job 8", 3), holder("Slurm job 7", 0)}) {
    const std::string text = error_of([&] { const RunFolder second(scratch.path(), other); });
    EXPECT_NE(text.find(fmt::format("process {} on ", ::getpid())), std::string::npos) << text;
    EXPECT_NE(text.find("of Slurm job 7, attempt 1 writes there"), std::string::npos) << text;
  }
  first.check();
}

TEST(RunFolder, EachProcessIsAnotherAttempt) {
  const ScratchFolder scratch;
  for (int64_t attempt = 1; attempt <= 3; ++attempt)
    EXPECT_EQ(RunFolder(scratch.path(), holder("", 0)).attempt(), attempt);
}

TEST(RunFolder, ALaterStartOfTheSameJobSupersedesTheOneBefore) {
  const ScratchFolder scratch;
  const RunFolder zombie(scratch.path(), holder("Slurm job 7", 0));
  const RunFolder successor(scratch.path(), holder("Slurm job 7", 1));
  EXPECT_EQ(successor.attempt(), 2);
  const std::string text = error_of([&] { zombie.check(); });
  EXPECT_NE(text.find("superseded: process "), std::string::npos) << text;
  EXPECT_NE(text.find("attempt 2"), std::string::npos) << text;
  successor.check();
  EXPECT_NE(
      error_of([&] { const RunFolder other(scratch.path(), holder("", 0)); }).find("attempt 2"),
      std::string::npos);
}

TEST(RunFolder, TheLockGoesWithAKilledProcess) {
  const ScratchFolder scratch;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunFolder held(scratch.path(), this_process());
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(RunFolder(scratch.path(), this_process()), Error);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(RunFolder(scratch.path(), this_process()).attempt(), 2);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunFolder, ATornLockFileIsNobodys) {
  const ScratchFolder scratch;
  // Temporary folders of the attempts before may be there still: they are not of later ones.
  for (const char* text : {"", "{\"attempt\": 3"}) {
    std::ofstream(scratch.path() / "run.lock") << text;
    const int64_t attempt = RunFolder(scratch.path(), this_process()).attempt();
    EXPECT_GT(attempt, 1'000'000'000);
    EXPECT_EQ(RunFolder(scratch.path(), this_process()).attempt(), attempt + 1);
  }
  const std::string text = to_text(holder("j", 2));
  EXPECT_EQ(parse_holder(text + "rest of a longer text\n")->restart, 2);
  EXPECT_FALSE(parse_holder("[]").has_value());
  EXPECT_FALSE(parse_holder("{\"attempt\": \"x\"}").has_value());
  EXPECT_EQ(parse_holder(to_text(holder("j", 2)))->restart, 2);
}

}  // namespace
}  // namespace tokamak
