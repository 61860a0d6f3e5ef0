#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/host_memory.h"
#include "tokamak/train/predecessor.h"
#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/run_signals.h"

#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

// Sends a signal to the process and waits until `stop` has it.
void send(const RunSignals& stop, int signal) {
  stop.stop();  // before it is asked, a signal ends the process
  ASSERT_EQ(kill(getpid(), signal), 0);
  await([&] { return stop.stop() != 0; }, "the signal");
}

TEST(RunSignals, FirstSignalOnlySetsTheFlag) {
  const RunSignals stop;
  EXPECT_EQ(stop.stop(), 0);
  send(stop, SIGTERM);
  EXPECT_EQ(stop.stop(), SIGTERM);
  send(stop, SIGINT);
  EXPECT_EQ(stop.stop(), SIGTERM);
}

TEST(RunSignals, ALauncherSaysWhichSignalItPassesOn) {
  for (const auto& [value, wanted] :
       {std::pair(SIGINT, SIGINT), std::pair(SIGHUP, SIGHUP), std::pair(7, SIGTERM)}) {
    const RunSignals stop;
    stop.stop();
    ASSERT_EQ(sigqueue(getpid(), SIGTERM, {.sival_int = value}), 0);
    await([&] { return stop.stop() != 0; }, "the signal");
    EXPECT_EQ(stop.stop(), wanted);
  }
}

TEST(RunSignals, HaveNames) {
  EXPECT_EQ(name_of_signal(SIGINT), "Ctrl-C");
  EXPECT_EQ(name_of_signal(SIGTERM), "SIGTERM");
  EXPECT_EQ(name_of_signal(SIGHUP), "SIGHUP");
}

TEST(RunSignals, ANewOneStartsUnset) {
  {
    const RunSignals stop;
    send(stop, SIGINT);
    EXPECT_EQ(stop.stop(), SIGINT);
  }
  EXPECT_EQ(RunSignals().stop(), 0);
}

TEST(RunSignals, TheSecondOfAKindEndsTheProcess) {
  const auto twice = [] {
    const RunSignals stop;
    send(stop, SIGTERM);
    kill(getpid(), SIGTERM);
    while (true) pause();
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(RunSignals, EndsAProcessThatHasNothingToSave) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const auto once = [&] {
      const RunSignals stop;
      kill(getpid(), signal);
      while (true) pause();
    };
    EXPECT_EXIT(once(), ::testing::ExitedWithCode(85), "before the first step");
  }
}

TEST(RunSignals, AskToSaveOnce) {
  const RunSignals signals;
  EXPECT_FALSE(signals.takes_save());
  ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
  await([&] { return signals.takes_save(); }, "the signal");
  EXPECT_FALSE(signals.takes_save());
  EXPECT_EQ(signals.stop(), 0);
}

// oneDNN's kernels move the stack pointer: where a signal were handled by a thread that computes,
// the handler's frame would lie in the operands.
TEST(RunSignals, InterruptsNoThreadThatComputes) {
  const RunSignals stop;
  sigset_t here;
  sigset_t there;
  pthread_sigmask(SIG_SETMASK, nullptr, &here);
  std::thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &there); }).join();
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    EXPECT_EQ(sigismember(&here, signal), 1);
    EXPECT_EQ(sigismember(&there, signal), 1);
  }
}

TEST(MemoryUse, PeakGrowsWithWhatIsTouchedAndStaysBelowTheMachine) {
  constexpr int64_t block_bytes = 64 << 20;
  const int64_t before = peak_resident_bytes();
  EXPECT_GT(before, 0);
  std::vector<char> block(block_bytes, 'x');
  EXPECT_EQ(block[block_bytes / 2], 'x');
  EXPECT_GE(peak_resident_bytes(), block_bytes);
  EXPECT_GE(peak_resident_bytes(), before);
  EXPECT_LT(peak_resident_bytes(), host_memory().limit);
}

// A zombie has freed all that it held; a process that was never there holds nothing.
TEST(Predecessors, AreAwaitedUntilTheyAreGone) {
  EXPECT_FALSE(has_predecessors());
  EXPECT_FALSE(are_predecessors_alive());
  EXPECT_LT(await_predecessors(), 1.0);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  constexpr int kMostProcesses = 1 << 22;
  setenv(kPredecessorsVariable,
         (std::to_string(kMostProcesses) + " " + std::to_string(child)).c_str(), 1);
  EXPECT_TRUE(has_predecessors());
  EXPECT_TRUE(are_predecessors_alive());
  std::thread killer([child, waiter = gettid()] {
    await([&] { return is_asleep(waiter); }, "the wait");
    kill(child, SIGKILL);
  });
  const double seconds = await_predecessors();
  EXPECT_FALSE(are_predecessors_alive());
  EXPECT_GT(seconds, 0.0);
  EXPECT_LT(seconds, 20.0);
  killer.join();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  unsetenv(kPredecessorsVariable);
}

}  // namespace
}  // namespace tokamak
