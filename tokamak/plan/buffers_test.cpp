#include "tokamak/plan/buffers.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"

namespace tokamak {
namespace {

using Floats = std::vector<float>;

TensorType f32(Dims dims) {
  return {.dtype = DType::kF32, .dims = std::move(dims)};
}

// A graph whose State a test names, fills and reads.
struct Bench {
  StateTable states;
  Graph graph{states};

  StateId declare(const std::string& name, Dims dims, StateKind kind = StateKind::kInput) {
    return states.declare({.name = name, .type = f32(std::move(dims)), .kind = kind});
  }

  StateId window(const std::string& name, Dims dims, StateId of, int64_t begin) {
    return states.declare({.name = name,
                           .type = f32(std::move(dims)),
                           .kind = states[of].kind,
                           .window_of = of,
                           .window_begin = begin});
  }

  Plan plan() {
    Plan made = compile(graph, lay_out(states), {.target = cpu::make_backend()->target()});
    check_plan(made);
    return made;
  }

  // Runs one step over State that holds 1, 2, 3, ... and returns `result`.
  Floats run(StateId result, int microbatches) {
    const Plan made = plan();
    const auto backend = cpu::make_backend();
    const Plan* plans[] = {&made};
    const Memory memory(*backend, plans);
    EXPECT_EQ(memory.bytes(), made.peak_bytes());
    const StateLayout layout = lay_out(states);
    const StateAccess access(memory, states, layout);
    for (int32_t i = 0; i < states.size(); ++i) {
      if (states[{i}].is_absent || states[{i}].window_of.valid()) continue;
      Floats values(static_cast<size_t>(states[{i}].type.numel()));
      for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k + 1);
      access.write(StateId{i}, std::span<const float>(values));
    }
    Executor executor(made, memory);
    for (const ScheduleItem& item : made.schedule(microbatches)) executor.run(item);
    return access.read<float>(result);
  }
};

TEST(Windows, lie_in_their_parent_and_take_no_bytes) {
  StateTable states;
  const auto flat = states.declare({.name = "flat", .type = f32({64}), .block = 1});
  const auto other = states.declare({.name = "other", .type = f32({8}), .block = 0});
  const auto window = states.declare(
      {.name = "w", .type = f32({4, 4}), .block = 0, .window_of = flat, .window_begin = 40});
  const auto inner =
      states.declare({.name = "i", .type = f32({2}), .window_of = window, .window_begin = 3});
  const auto absent = states.declare({.name = "a", .type = f32({999}), .is_absent = true});
  const StateLayout layout = lay_out(states);
  EXPECT_EQ(layout.bytes, 2 * kArenaAlignment);
  EXPECT_EQ(layout[other], 0);
  EXPECT_EQ(layout[flat], kArenaAlignment);
  EXPECT_EQ(layout[window], kArenaAlignment + 160);
  EXPECT_EQ(layout[inner], kArenaAlignment + 172);
  EXPECT_EQ(layout[absent], StateLayout::kNowhere);
  states.declare({.name = "beyond", .type = f32({25}), .window_of = flat, .window_begin = 40});
  EXPECT_THROW(lay_out(states), Bug);
}

// flat is [a | b | 2 left alone]; gradients go to the windows, then the whole is read.
TEST(Windows, gradients_accumulate_in_a_flat_bucket_that_is_then_read_whole) {
  Bench t;
  const Value x = t.graph.read(t.declare("x", {1, 2}));
  const auto flat = t.declare("flat", {10}, StateKind::kGradient);
  const auto result = t.declare("result", {10}, StateKind::kResult);
  for (const auto& [name, begin] : {std::pair{"a", 0}, {"b", 4}}) {
    const Value into = t.graph.read(t.window(name, {2, 2}, flat, begin));
    accumulate_into(t.graph, t.graph.apply(LinearGradWeight{}, {x, x}), into,
                    AccumulateMode::kFirstMicrobatch);
  }
  t.graph.label.phase = Phase::kUpdate;
  const Value whole = t.graph.apply(Accumulate{}, {t.graph.read(flat)});
  t.graph.accumulate(whole, t.graph.read(result), AccumulateMode::kNever);
  // x = (1, 2), so dw = (1, 2, 2, 4) a microbatch.
  EXPECT_EQ(t.run(result, 1), (Floats{1, 2, 2, 4, 1, 2, 2, 4, 9, 10}));
  EXPECT_EQ(t.run(result, 3), (Floats{3, 6, 6, 12, 3, 6, 6, 12, 9, 10}));
  int64_t gradients = 0;
  for (const MemoryRow& row : t.plan().memory)
    gradients += row.owner == "gradients" ? row.bytes : 0;
  EXPECT_EQ(gradients, kArenaAlignment);
}

TEST(Accumulate, into_a_view_of_state_writes_only_its_bytes) {
  Bench t;
  const Value x = t.graph.read(t.declare("x", {1, 2}));
  const auto flat = t.declare("flat", {3, 4}, StateKind::kResult);
  const Value leaf = t.graph.read(flat);
  const auto piece = [&](int64_t row) {
    const Value slice = t.graph.apply(SliceRows{.begin = row, .end = row + 1}, {leaf});
    return t.graph.apply(Reshape{.dims = {2, 2}}, {slice});
  };
  const Value last = piece(2);
  const Value first = piece(0);
  t.graph.accumulate(t.graph.apply(LinearGradWeight{}, {x, x}), last, AccumulateMode::kAlways);
  t.graph.accumulate(t.graph.apply(LinearGradWeight{}, {x, x}), first, AccumulateMode::kNever);
  EXPECT_EQ(t.run(flat, 1), (Floats{1, 2, 2, 4, 5, 6, 7, 8, 9 + 1, 10 + 2, 11 + 2, 12 + 4}));
  EXPECT_EQ(t.run(flat, 2), (Floats{1, 2, 2, 4, 5, 6, 7, 8, 9 + 2, 10 + 4, 11 + 4, 12 + 8}));
}

TEST(Accumulate, a_view_of_bytes_written_since_is_not_read) {
  Bench t;
  const Value x = t.graph.read(t.declare("x", {1, 2}));
  const Value leaf = t.graph.read(t.declare("flat", {3, 2}));
  const auto rows = [&](int64_t begin, int64_t end) {
    return t.graph.apply(SliceRows{.begin = begin, .end = end}, {leaf});
  };
  const Value into = rows(1, 3);
  const Value apart = rows(0, 1);
  const Value overlapping = rows(0, 2);
  t.graph.accumulate(t.graph.apply(LinearGradWeight{}, {x, x}), into, AccumulateMode::kNever);
  const auto result = t.declare("result", {1, 2}, StateKind::kResult);
  accumulate_into(t.graph, t.graph.apply(Add{}, {apart, apart}), t.graph.read(result),
                  AccumulateMode::kNever);
  EXPECT_EQ(t.run(result, 1), (Floats{2, 4}));
  const auto wrong = t.declare("wrong", {2, 2}, StateKind::kResult);
  accumulate_into(t.graph, t.graph.apply(Add{}, {overlapping, overlapping}), t.graph.read(wrong),
                  AccumulateMode::kNever);
  EXPECT_THROW(t.plan(), Bug);
}

TEST(State, absent_is_never_used) {
  Bench t;
  const auto gone = t.states.declare({.name = "gone", .type = f32({2}), .is_absent = true});
  const Value sum = t.graph.apply(Add{}, {t.graph.read(gone), t.graph.read(gone)});
  accumulate_into(t.graph, sum, t.graph.read(t.declare("result", {2})), AccumulateMode::kNever);
  EXPECT_THROW(t.plan(), Bug);
}

}  // namespace
}  // namespace tokamak
