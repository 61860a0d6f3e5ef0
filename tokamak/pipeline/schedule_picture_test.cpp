#include "tokamak/pipeline/schedule_picture.h"

#include <gtest/gtest.h>

#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

TEST(SchedulePicture, HasACellForEachUnitOfTime) {
  EXPECT_EQ(schedule_text(make_schedule("1F1B", 2, 1, 3)),
            "1F1B: 2 ranks, 2 stages, 3 microbatches; 12 units of time, bubble 33.3 % of the "
            "work\n\n"
            "rank 0 F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
            "rank 1 .  F0 B0--- F1 B1--- F2 B2--- .  .\n\n"
            "rank 0: at most 2 in flight (stage 0: 2), idle 3 of 12\n"
            "rank 1: at most 1 in flight (stage 1: 1), idle 3 of 12\n");
}

TEST(SchedulePicture, NamesStagesWhereARankHasSeveral) {
  const std::string text = schedule_text(make_schedule("DualPipeV", 3, 2, 8));
  EXPECT_NE(text.find("rank 0 0F0 0F1 0F2 0F3 0F4 5F0 5I0 5W0 5F1 5I1 5W1 5F2 0F5&5B2---- .   .   "
                      "5F3&0B0----"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 2: at most 7 in flight (stage 2: 4, stage 3: 3), idle 4 of 52\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace tokamak
