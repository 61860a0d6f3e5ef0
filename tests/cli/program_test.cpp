#include "tests/fixtures/program.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

TEST(RunProgram, GivesCodeAndBothStreams) {
  const ScratchFolder folder;
  const auto result = run_program({"sh", "-c", "pwd; echo oops >&2; exit 3"}, folder.path());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, folder.path().string() + "\n");
  EXPECT_EQ(result.err, "oops\n");
}

TEST(RunProgram, ReportsASignalAsAShellDoes) {
  EXPECT_EQ(run_program({"sh", "-c", "kill -TERM $$"}).exit_code, 128 + 15);
}

TEST(RunProgram, SaysWhatCannotBeStarted) {
  EXPECT_THROW(run_program({"/nowhere/at/all"}), SystemError);
}

}  // namespace
}  // namespace tokamak
