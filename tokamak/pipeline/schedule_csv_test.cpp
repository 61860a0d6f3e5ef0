#include "tokamak/pipeline/schedule_csv.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/pipeline/schedules.h"

namespace tokamak {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_schedule_csv(text, "mine.csv");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string to_csv(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& list : schedule.actions) {
    std::string row;
    for (size_t i = 0; i < list.size(); ++i) {
      const bool pair = i + 1 < list.size() && list[i + 1].overlaps_previous;
      if (!row.empty()) row += ',';
      if (pair) {
        row += fmt::format("({};{})OVERLAP_F_B", to_string(list[i]), to_string(list[i + 1]));
        ++i;
      } else {
        row += to_string(list[i]);
      }
    }
    text += row + '\n';
  }
  return text;
}

TEST(ScheduleCsv, ReadsWhatIsWritten) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBVZeroBubble",
                           "InterleavedZeroBubble", "DualPipeV"}) {
    const PipelineSchedule wanted =
        make_schedule(name, 3, schedule_kind(name).default_stages_per_rank, 7);
    const PipelineSchedule got = parse_schedule_csv(to_csv(wanted), "a.csv");
    EXPECT_EQ(got.actions, wanted.actions) << name;
    EXPECT_EQ(got.rank_of_stage, wanted.rank_of_stage) << name;
    EXPECT_EQ(got.num_microbatches, 7);
    EXPECT_EQ(got.name, "a.csv");
  }
}

TEST(ScheduleCsv, SkipsBlanksAndCommunication) {
  const PipelineSchedule s = parse_schedule_csv(
      "0UNSHARD,0F0, \"0SEND_F0\" ,,0F1,0RECV_B0, 0B0,0B1,0REDUCE_GRAD\r\n"
      ",,1RECV_F0,1F0,1B0,1F1,1B1,,\r\n\r\n",
      "a.csv");
  EXPECT_EQ(s.num_ranks, 2);
  EXPECT_EQ(to_csv(s), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(ScheduleCsv, ReadsPairs) {
  const PipelineSchedule s =
      parse_schedule_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0I0,1F1,1B1,0B1,0W0\n", "a.csv");
  EXPECT_TRUE(s.actions[0][3].overlaps_previous);
  EXPECT_EQ(s.actions[0][3], (PipelineAction{PipelineOp::kBackward, 1, 0, true}));
  EXPECT_TRUE(s.splits_backward());
}

TEST(ScheduleCsv, ReadsOldSplitBackwards) {
  const PipelineSchedule s = parse_schedule_csv("0F0,0B0,0W0\n", "a.csv");
  EXPECT_EQ(to_csv(s), "0F0,0I0,0W0\n");
}

TEST(ScheduleCsv, NamesRowAndCell) {
  EXPECT_EQ(error_of("0F0,0X0\n"),
            "mine.csv: row 1, cell 2: wanted STAGE, one of F, B, I, W, MICROBATCH (like 2F0), got "
            "0X0");
  EXPECT_EQ(error_of("0F0,0B0\n0F1,1B0\n"),
            "mine.csv: row 2, cell 1: stage 0 is in row 1; a stage has one rank");
  EXPECT_EQ(error_of("(0F0;0B0)\n"),
            "mine.csv: row 1, cell 1: wanted a pair like (0F3;3B1)OVERLAP_F_B, got (0F0;0B0)");
  EXPECT_EQ(error_of("0F0,0B0\n2F0,2B0\n"), "mine.csv: no row has stage 1; there is a stage 2");
  EXPECT_EQ(error_of("0F0,0B999999\n"),
            "mine.csv: wanted at least 2000000 actions (forward and backward, stages up to 0, "
            "microbatches up to 999999), got 2");
  EXPECT_EQ(error_of("\n \n"),
            "mine.csv: wanted a row of actions for each pipeline rank, got none");
  EXPECT_EQ(
      error_of("0F0,0B0,0F1\n"),
      "mine.csv: wanted at least 4 actions (forward and backward, stages up to 0, microbatches "
      "up to 1), got 3");
  EXPECT_EQ(error_of("0F0,0I0,0F1,0I1\n"),
            "pipeline schedule mine.csv: rank 0: stage 0 never runs the weight gradient of "
            "microbatch 0");
  EXPECT_EQ(error_of("0F99999999999,0B0\n"),
            "mine.csv: row 1, cell 1: wanted STAGE, one of F, B, I, W, MICROBATCH (like 2F0), got "
            "0F99999999999");
  EXPECT_NE(error_of("(0F0"), "");
  EXPECT_NE(error_of("1000000F0\n"), "");
}

}  // namespace
}  // namespace tokamak
