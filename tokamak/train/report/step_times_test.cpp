#include "tokamak/train/report/step_times.h"

#include <string>

#include <gtest/gtest.h>

#include "tokamak/train/report/start_phases.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(StartPhases, AreStatedInOrderWithoutThoseOfNoLength) {
  const Clock::time_point start;
  StartPhases phases(start);
  phases.end("MPI", start);
  phases.end("plan", start + milliseconds(120));
  phases.take_out("plan", "ranks that die", 0.06);
  const std::string line = phases.line();
  EXPECT_EQ(line.rfind("Started in ", 0), 0U) << line;
  EXPECT_NE(line.find(" s: plan "), std::string::npos) << line;
  EXPECT_NE(line.find(", ranks that die 0.1"), std::string::npos) << line;
}

TEST(StepTimes, AreBetweenEndsOfStepsInARow) {
  StepTimes times;
  const Clock::time_point start;
  times.add(1, start);
  EXPECT_FALSE(times.last_s());
  EXPECT_FALSE(times.median_s());
  times.add(2, start + milliseconds(100));
  times.add(3, start + milliseconds(400));
  EXPECT_DOUBLE_EQ(*times.last_s(), 0.3);
  EXPECT_DOUBLE_EQ(*times.median_s(), 0.3);
  times.add(4, start + milliseconds(500));
  EXPECT_DOUBLE_EQ(*times.median_s(), 0.1);
  // Back to a checkpoint: the time in between is no step's.
  times.add(2, start + milliseconds(5000));
  EXPECT_FALSE(times.last_s());
  times.add(3, start + milliseconds(5400));
  EXPECT_DOUBLE_EQ(*times.last_s(), 0.4);
  EXPECT_DOUBLE_EQ(*times.median_s(), 0.3);
}

}  // namespace
}  // namespace tokamak
