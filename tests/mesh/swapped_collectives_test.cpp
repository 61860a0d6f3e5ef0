// Two collectives of equal types in swapped order on one rank exchange values that do not belong
// together, and nothing waits: only check_ranks can tell.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

// Whether a rank that enters one of two tasks instead of the other does so unnoticed.
bool look_alike(const Task& a, const Task& b) {
  const auto type = [](const Task& task) {
    const Operand& o = task.in.empty() ? task.out[0] : task.in[0];
    return std::pair(o.type.dtype, o.type.numel());
  };
  return b.rules->is_communication && a.rules == b.rules && a.stream == b.stream &&
         a.when == b.when && type(a) == type(b) &&
         a.rules->group(a.op.get()) == b.rules->group(b.op.get());
}

// Swaps on the last rank each collective with the next that looks alike, one pair at a time;
// returns how many pairs there are.
int expect_swaps_found(const MeshCase& c) {
  const Target target = cpu::make_backend({.threads = 1})->target();
  std::vector<std::unique_ptr<PlannedRun>> runs;
  std::vector<const Plan*> plans;
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    runs.push_back(std::make_unique<PlannedRun>(c.model, shape_of(c, rank), target));
    plans.push_back(&runs.back()->plan());
  }
  const auto check = [&] {
    check_ranks(c.distribute.mesh, plans, static_cast<int>(c.num_microbatches));
  };
  check();
  Plan swapped = *plans.back();
  plans.back() = &swapped;
  int num_swaps = 0;
  for (Segment& segment : swapped.segments) {
    for (auto a = segment.tasks.begin(); a != segment.tasks.end(); ++a) {
      if (!a->rules->is_communication) continue;
      const auto b = std::find_if(a + 1, segment.tasks.end(),
                                  [&](const Task& task) { return look_alike(*a, task); });
      if (b == segment.tasks.end()) continue;
      // The places keep their waits, so nothing comes to a halt.
      const auto swap = [&] {
        std::swap(*a, *b);
        std::swap(a->waits, b->waits);
      };
      swap();
      EXPECT_THROW(check(), Bug) << describe(c) << ": " << a->rules->name << " of block "
                                 << a->label.block << ", value " << a->label.origin.value;
      swap();
      ++num_swaps;
    }
  }
  check();
  return num_swaps;
}

MeshCase swapped_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = small_llama(), .seq_len = 16, .global_batch = 8, .num_microbatches = 2};
  c.distribute.mesh.degrees = degrees;
  return c;
}

TEST(SwappedCollectives, are_found_where_tp_gathers) {
  MeshCase c = swapped_case({1, 1, 1, 1, 2});
  EXPECT_GT(expect_swaps_found(c), 10);
  c.recompute.mode = Mode::kFull;
  EXPECT_GT(expect_swaps_found(c), 10);
  c.recompute = {};
  c.distribute.gather_again = true;
  c.distribute.covers_collectives = true;
  EXPECT_GT(expect_swaps_found(c), 10);
}

TEST(SwappedCollectives, are_found_in_context_parallelism) {
  for (const ContextMethod method :
       {ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses}) {
    MeshCase c = swapped_case({1, 1, 1, 2, 1});
    c.distribute.context = method;
    EXPECT_GT(expect_swaps_found(c), 3);
    c.distribute.covers_context = true;
    EXPECT_GT(expect_swaps_found(c), 3);
  }
}

TEST(SwappedCollectives, are_found_where_weights_are_gathered) {
  MeshCase c = swapped_case({1, 1, 4, 1, 1});
  c.distribute.sharding = Sharding::kFsdp;
  EXPECT_GT(expect_swaps_found(c), 3);
  c.distribute.mesh.degrees = {1, 2, 2, 1, 1};
  EXPECT_GT(expect_swaps_found(c), 3);
}

TEST(SwappedCollectives, are_found_in_pipelines) {
  for (const auto& [schedule, chunks] :
       {std::pair("1F1B", 1), {"Interleaved1F1B", 2}, {"ZBVZeroBubble", 2}}) {
    MeshCase c = swapped_case({2, 1, 1, 1, 2});
    c.num_microbatches = 4;
    c.model.num_layers = 4;
    set_pipeline(c, schedule, chunks);
    EXPECT_GT(expect_swaps_found(c), 10) << schedule;
  }
}

// Maxima of tensors are one number each, so all of them look alike.
TEST(SwappedCollectives, are_found_among_maxima) {
  for (const char* recipe : {"tensorwise", "delayed"}) {
    const MeshCase c = mesh_case(recipe, {.name = "tp2", .degrees = {1, 1, 1, 1, 2}});
    EXPECT_GT(expect_swaps_found(c), 10) << recipe;
  }
}

}  // namespace
}  // namespace tokamak
