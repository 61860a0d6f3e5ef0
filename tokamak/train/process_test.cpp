#include <csignal>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/stop_signal.h"

namespace tokamak {
namespace {

TEST(StopSignal, FirstSignalOnlySetsTheFlag) {
  const StopSignal stop;
  EXPECT_EQ(stop.received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(stop.received(), SIGTERM);
  std::raise(SIGINT);
  EXPECT_EQ(stop.received(), SIGTERM);
}

TEST(StopSignal, ANewOneStartsUnset) {
  {
    const StopSignal stop;
    std::raise(SIGINT);
    EXPECT_EQ(stop.received(), SIGINT);
  }
  EXPECT_EQ(StopSignal().received(), 0);
}

TEST(StopSignal, TheSecondOfAKindEndsTheProcess) {
  const auto twice = [] {
    const StopSignal stop;
    std::raise(SIGTERM);
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGTERM), "");
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
