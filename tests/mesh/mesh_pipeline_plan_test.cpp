// Plans of pipelines that are not run: their slots, and what runs beside them.
#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/plan/slots.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/state/pieces.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

const std::vector<std::pair<std::string, int>> kSchedules{{"GPipe", 1},
                                                          {"1F1B", 1},
                                                          {"Interleaved1F1B", 2},
                                                          {"InterleavedZeroBubble", 1},
                                                          {"ZBVZeroBubble", 2}};

MeshCase pipeline_case(const std::string& schedule, int chunks) {
  MeshCase c{.model = flavor_spec("llama3", "debugmodel"),
             .seq_len = 32,
             .global_batch = 8,
             .num_microbatches = 8};
  c.model.num_layers = 8;
  c.distribute.mesh.degrees = {4, 1, 1, 1, 1};
  set_pipeline(c, schedule, chunks);
  return c;
}

// Values that the forward saves for the backward and for weight gradients take one slot for each
// microbatch that the schedule has in flight; chunks of one rank share a pool.
TEST(MeshPlan, pipeline_slots_are_the_schedules) {
  for (const auto& [schedule, chunks] : kSchedules) {
    const MeshCase c = pipeline_case(schedule, chunks);
    const std::vector<int> want = chunks_in_flight(c.distribute.pipeline);
    for (int rank = 0; rank < 4; ++rank) {
      RunShape shape = shape_of(c, rank);
      shape.recompute.emit_on_backward = false;
      const PlannedRun run(c.model, shape, {});
      const Plan& plan = run.plan();
      for (const int stage : c.distribute.pipeline.stages_of(rank)) {
        int count = 0;
        for (const SlotClass& slots : plan.slots) {
          if (plan.segments[static_cast<size_t>(slots.first_segment)].point ==
              PipelinePoint{PipelineItemKind::kForward, stage})
            count = std::max(count, slots.count);
        }
        const int in_flight = want[static_cast<size_t>(rank)];
        // A V holds what it still sends a little longer than the computations need it.
        const int sending = schedule == "ZBVZeroBubble" ? 1 : 0;
        EXPECT_GE(count, in_flight) << schedule << " rank " << rank << " stage " << stage;
        EXPECT_LE(count, in_flight + sending) << schedule << " rank " << rank << " stage " << stage;
      }
    }
  }
}

// The rank that holds most holds less, also where what is emitted waits for the weight gradients.
TEST(MeshPlan, emitting_on_backward_takes_less_for_slots) {
  for (const auto& [schedule, chunks] : kSchedules) {
    const MeshCase c = pipeline_case(schedule, chunks);
    const auto most_slot_bytes = [&](bool emits) {
      int64_t most = 0;
      for (int rank = 0; rank < 4; ++rank) {
        RunShape shape = shape_of(c, rank);
        shape.recompute.emit_on_backward = emits;
        const PlannedRun run(c.model, shape, {});
        most = std::max(most, run.plan().arena_bytes[static_cast<size_t>(ArenaKind::kSlot)]);
      }
      return most;
    };
    EXPECT_LT(most_slot_bytes(true), most_slot_bytes(false)) << schedule;
  }
}

// What every variant reduces once a step outlives its item up to the update, and takes no bytes
// that it would not take else.
TEST(MeshPlan, reductions_outlive_the_last_backward) {
  struct Data {
    MeshCoordinates degrees;
    Sharding sharding;
    Reshard reshard;
  };

  for (const auto& [schedule, chunks] : kSchedules) {
    for (const Data& data : {Data{{4, 1, 2, 1, 1}, Sharding::kFsdp, Reshard::kDefault},
                             Data{{4, 1, 2, 1, 1}, Sharding::kFsdp, Reshard::kAlways},
                             Data{{4, 1, 2, 1, 2}, Sharding::kZero1, Reshard::kDefault},
                             Data{{4, 2, 1, 1, 1}, Sharding::kDdp, Reshard::kDefault},
                             Data{{4, 2, 2, 2, 1}, Sharding::kFsdp, Reshard::kDefault}}) {
      MeshCase c = pipeline_case(schedule, chunks);
      c.global_batch = 32;
      c.distribute.mesh.degrees = data.degrees;
      c.distribute.sharding = data.sharding;
      c.distribute.reshard = data.reshard;
      for (int stage = 0; stage < 4; ++stage) {
        const PlannedRun run(c.model, shape_of(c, stage * c.distribute.mesh.size() / 4), {});
        Plan plan = run.plan();
        check_plan(plan);
        std::vector<int> outlived;
        for (int i = 0; i < std::ssize(plan.items); ++i) {
          const ScheduleItem& item = plan.items[static_cast<size_t>(i)];
          const Segment& segment = plan.segments[static_cast<size_t>(item.segment)];
          if (item.is_last && !segment.outliving_streams.empty()) outlived.push_back(i);
          for (const Task& task : segment.tasks)
            EXPECT_EQ(task.when == When::kLastMicrobatch, segment.outlives(task.stream));
        }
        EXPECT_EQ(outlived.size(), static_cast<size_t>(chunks)) << schedule;
        EXPECT_EQ(plan.segments.back().name, "update");
        EXPECT_EQ(plan.items.back().waits, outlived) << schedule;
        const int64_t bytes = plan.peak_bytes();
        for (Segment& segment : plan.segments) segment.outliving_streams.clear();
        for (ScheduleItem& item : plan.items)
          std::erase_if(item.waits, [&](int w) {
            return std::find(outlived.begin(), outlived.end(), w) != outlived.end();
          });
        for (SlotClass& slots : plan.slots) slots.bytes = slots.value_bytes;
        assign_slots(plan);
        EXPECT_EQ(plan.peak_bytes(), bytes) << schedule;
      }
    }
  }
}

// A checkpoint is copied beside forward and backward.
TEST(MeshPlan, only_the_update_writes_what_is_saved) {
  const MeshCase alone{.model = small_llama(), .seq_len = 32, .global_batch = 8};
  MeshCase sharded = alone;
  sharded.distribute.mesh.degrees = {1, 1, 2, 1, 2};
  MeshCase delayed = sharded;
  delayed.compute = DType::kBF16;
  delayed.model.vocab_size = 64;
  delayed.model.dim = 64;
  delayed.model.num_kv_heads = 2;
  delayed.model.head_dim = 16;
  delayed.model.mlp_dim = 128;
  delayed.float8 = {.recipe = *find_float8_recipe("delayed"),
                    .layers = {.filter = [](const auto&, const auto&) { return ""; }}};
  for (const MeshCase& c : {alone, sharded, delayed, pipeline_case("ZBVZeroBubble", 2)}) {
    for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
      const PlannedRun run(c.model, shape_of(c, rank), {});
      const auto writes = segments_that_write(run.plan(), run.layout(), run.pieces());
      ASSERT_EQ(writes.size(), run.plan().segments.size());
      for (size_t s = 0; s < writes.size(); ++s)
        EXPECT_EQ(writes[s], run.plan().segments[s].name == "update") << rank << " " << s;
    }
  }
}

}  // namespace
}  // namespace tokamak
