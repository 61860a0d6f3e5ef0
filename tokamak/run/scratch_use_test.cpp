#include "tokamak/run/scratch_use.h"

#include <gtest/gtest.h>

#include "tokamak/ops/elementwise/add.h"

namespace tokamak {
namespace {

Operand at(int64_t offset, int64_t floats, ArenaKind arena = ArenaKind::kScratch) {
  return {.arena = arena, .offset = offset, .type = {.dims = {floats}}, .strides = {1}};
}

Task task(std::vector<Operand> in, std::vector<Operand> out) {
  Task t{.rules = &kRules<Add>, .in = std::move(in), .out = std::move(out)};
  t.accumulate.resize(t.out.size());
  return t;
}

TEST(ScratchInUse, GoesFromTheWriteToTheLastRead) {
  Segment s;
  s.tasks = {task({at(0, 8, ArenaKind::kState)}, {at(0, 8)}), task({}, {at(32, 2)}),
             task({at(0, 8)}, {at(40, 1)}), task({at(32, 2)}, {})};
  s.tasks[1].workspace_bytes = 100;
  EXPECT_EQ(scratch_in_use(s), (std::vector<int64_t>{32, 140, 44, 8}));
}

TEST(ScratchInUse, CountsBytesOnceThatATaskWritesInPlace) {
  Segment s;
  s.tasks = {task({}, {at(0, 8)}), task({at(0, 8)}, {at(0, 8)}), task({at(0, 8)}, {})};
  EXPECT_EQ(scratch_in_use(s), (std::vector<int64_t>{32, 32, 32}));
}

TEST(ScratchInUse, KeepsWhatAPartialWriteLeaves) {
  Segment s;
  s.tasks = {task({}, {at(0, 8)}), task({}, {at(8, 2)}), task({at(0, 8)}, {})};
  EXPECT_EQ(scratch_in_use(s), (std::vector<int64_t>{32, 32, 32}));
}

TEST(ScratchInUse, LeavesAGapBetweenTwoLivesOfTheSameBytes) {
  Segment s;
  s.tasks = {task({}, {at(0, 4)}), task({at(0, 4)}, {}), task({}, {}), task({}, {at(0, 4)})};
  EXPECT_EQ(scratch_in_use(s), (std::vector<int64_t>{16, 16, 0, 16}));
}

}  // namespace
}  // namespace tokamak
