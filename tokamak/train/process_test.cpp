#include <chrono>
#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/stop_signal.h"

#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

// Sends a signal to the process and waits until `stop` has it.
void send(const StopSignal& stop, int signal) {
  stop.received();  // before it is asked, a signal ends the process
  ASSERT_EQ(kill(getpid(), signal), 0);
  await([&] { return stop.received() != 0; }, "the signal");
}

TEST(StopSignal, FirstSignalOnlySetsTheFlag) {
  const StopSignal stop;
  EXPECT_EQ(stop.received(), 0);
  send(stop, SIGTERM);
  EXPECT_EQ(stop.received(), SIGTERM);
  send(stop, SIGINT);
  EXPECT_EQ(stop.received(), SIGTERM);
}

TEST(StopSignal, ANewOneStartsUnset) {
  {
    const StopSignal stop;
    send(stop, SIGINT);
    EXPECT_EQ(stop.received(), SIGINT);
  }
  EXPECT_EQ(StopSignal().received(), 0);
}

TEST(StopSignal, TheSecondOfAKindEndsTheProcess) {
  const auto twice = [] {
    const StopSignal stop;
    send(stop, SIGTERM);
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignal, EndsAProcessThatDoesNotAsk) {
  const auto once = [] {
    const StopSignal stop;
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  };
  EXPECT_EXIT(once(), testing::KilledBySignal(SIGTERM), "");
}

// oneDNN's kernels move the stack pointer: where a signal were handled by a thread that computes,
// the handler's frame would lie in the operands.
TEST(StopSignal, InterruptsNoThreadThatComputes) {
  const StopSignal stop;
  sigset_t here;
  sigset_t there;
  pthread_sigmask(SIG_SETMASK, nullptr, &here);
  std::thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &there); }).join();
  for (const int signal : {SIGTERM, SIGINT}) {
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
  EXPECT_LT(peak_resident_bytes(), usable_memory_bytes());
}

}  // namespace
}  // namespace tokamak
