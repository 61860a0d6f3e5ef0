#include "tokamak/graph/streams.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/graph/slots.h"
#include "tokamak/ops/accumulate.h"

namespace tokamak {
namespace {

using Waits = std::vector<std::vector<int>>;

ByteUse reads(int task, int64_t begin, int64_t end) {
  return {.task = task, .begin = begin, .end = end};
}

ByteUse writes(int task, int64_t begin, int64_t end) {
  return {.task = task, .writes = true, .begin = begin, .end = end};
}

TEST(Waits, follow_bytes_read_and_written) {
  const std::vector<StreamTask> tasks{{0}, {1}, {0}, {1}, {0}};
  // 0 writes x; 1 reads x, writes y; 2 reads y; 3 overwrites x, which 2 left alone; 4 reads
  // neither.
  const std::vector<ByteUse> uses{writes(0, 0, 8),  reads(1, 0, 8),  writes(1, 8, 16),
                                  reads(2, 12, 16), writes(3, 0, 8), reads(4, 16, 20)};
  EXPECT_EQ(derive_waits(tasks, uses), (Waits{{}, {0}, {1}, {}, {}}));
  EXPECT_EQ(first_known(tasks, derive_waits(tasks, uses)), (std::vector<int>{5, 2, 5, 5, 5}));
}

TEST(Waits, leave_out_what_others_imply) {
  const std::vector<StreamTask> tasks{{1}, {2}, {0}};
  // 2 reads what 0 and 1 wrote, but 1 has waited for 0.
  EXPECT_EQ(derive_waits(tasks, std::vector<ByteUse>{writes(0, 0, 8), reads(1, 0, 8),
                                                     writes(1, 8, 16), reads(2, 0, 16)}),
            (Waits{{}, {0}, {1}}));
  // Two tasks of a stream: the later one is enough.
  EXPECT_EQ(derive_waits(std::vector<StreamTask>{{1}, {1}, {0}},
                         std::vector<ByteUse>{writes(0, 0, 8), writes(1, 8, 16), reads(2, 0, 16)}),
            (Waits{{}, {}, {1}}));
  // A write follows every reader, of each stream.
  EXPECT_EQ(derive_waits(std::vector<StreamTask>{{1}, {2}, {0}},
                         std::vector<ByteUse>{reads(0, 0, 8), reads(1, 0, 8), writes(2, 4, 6)}),
            (Waits{{}, {}, {0, 1}}));
}

TEST(Waits, of_tasks_that_run_in_the_last_microbatch_only_help_no_other) {
  const std::vector<StreamTask> tasks{{1}, {2, When::kLastMicrobatch}, {0}};
  const std::vector<ByteUse> uses{writes(0, 0, 8), writes(1, 0, 8), reads(2, 0, 8)};
  EXPECT_EQ(derive_waits(tasks, uses), (Waits{{}, {0}, {0, 1}}));
  const std::vector<StreamTask> all_last{
      {1}, {2, When::kLastMicrobatch}, {0, When::kLastMicrobatch}};
  EXPECT_EQ(derive_waits(all_last, uses), (Waits{{}, {0}, {1}}));
}

// Tasks of one segment that read and write ranges of the scratch arena.
struct Segments {
  Plan plan;

  explicit Segments(std::vector<Segment> segments = {Segment{}}) {
    plan.segments = std::move(segments);
    plan.arena_bytes[static_cast<size_t>(ArenaKind::kScratch)] = 4096;
  }

  static Operand operand(int64_t begin, int64_t end) {
    return {
        .offset = begin * 4, .type = {.dtype = DType::kF32, .dims = {end - begin}}, .strides = {1}};
  }

  static Task task(const StreamTask& at) {
    static const auto kOp = std::make_shared<const Accumulate>();
    return {.rules = &kRules<Accumulate>,
            .op = kOp,
            .variant = &kCpuReference,
            .stream = at.stream,
            .when = at.when};
  }
};

TEST(Waits, derived_for_random_segments_pass_the_check_and_none_is_too_many) {
  int lost = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t drawn = 0;
    const auto draw = [&](uint32_t n) {
      return static_cast<int>(random_u32(seed, 7, drawn++) % n);
    };
    Segments s;
    auto& tasks = s.plan.segments[0].tasks;
    for (int t = 0; t < 40; ++t) {
      tasks.push_back(Segments::task(
          {.stream = draw(3), .when = draw(6) == 0 ? When::kLastMicrobatch : When::kEvery}));
      for (auto* list : {&tasks.back().in, &tasks.back().out}) {
        const int begin = draw(60);
        list->push_back(Segments::operand(begin, begin + 1 + draw(6)));
      }
      tasks.back().accumulate.resize(1);
    }
    EXPECT_THROW(check_plan(s.plan), Bug);
    set_waits(s.plan);
    check_plan(s.plan);
    for (Task& task : tasks) {
      if (task.waits.empty()) continue;
      const int wait = task.waits.back();
      task.waits.pop_back();
      EXPECT_THROW(check_plan(s.plan), Bug) << "seed " << seed;
      task.waits.push_back(wait);
      ++lost;
    }
  }
  EXPECT_GT(lost, 3000);
}

}  // namespace
}  // namespace tokamak
