// Codes of saved values are made while the backward waits for its first gather: same bits.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/transpose_codes.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

MeshCase encoded_early(const char* recipe, const MeshCoordinates& degrees) {
  MeshCase c = mesh_case(recipe, {.name = "early",
                                  .degrees = degrees,
                                  .microbatches = degrees[0] > 1 ? 4 : 2,
                                  .schedule = "Interleaved1F1B",
                                  .chunks = 2});
  c.distribute.covers_collectives = true;
  c.distribute.covers_context = degrees[3] > 1;
  return c;
}

// Returns how many nodes of a stage's backward make codes for weight gradients between its first
// gather over tp and the first matmul.
int num_early(const Segment& backward) {
  bool has_gathered = false;
  int count = 0;
  for (const Task& task : backward.tasks) {
    has_gathered |= task.rules == &kRules<AllGather> && task.stream != 0;
    if (!has_gathered) continue;
    if (cost_of(task).kind == Cost::Kind::kGemm) break;
    const auto* quantize =
        task.rules == &kRules<Quantize> ? static_cast<const Quantize*>(task.op.get()) : nullptr;
    const bool is_transposed =
        quantize != nullptr && quantize->layout == Quantize::Layout::kTransposed;
    count += task.rules == &kRules<TransposeCodes> || is_transposed ? 1 : 0;
  }
  return count;
}

TEST(EncodeEarly, leaves_every_bit) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "blockwise"}) {
    for (const MeshCoordinates& degrees :
         {MeshCoordinates{1, 1, 1, 1, 2}, MeshCoordinates{2, 1, 1, 1, 2},
          MeshCoordinates{2, 1, 1, 2, 2}}) {
      MeshCase c = encoded_early(recipe, degrees);
      const MeshResult early = run_mesh(c);
      c.float8->recipe.fuses = false;  // nor moves
      expect_same_bits(run_mesh(c), early, c);
    }
  }
}

TEST(EncodeEarly, makes_codes_beside_the_first_gather_of_each_backward) {
  for (const char* recipe : {"tensorwise", "delayed"}) {
    const MeshCase c = encoded_early(recipe, {2, 1, 1, 1, 2});
    const PlannedRun run(c.model, shape_of(c, 0), {.backend = "gpu", .arch = 90});
    int num_backwards = 0;
    for (const Segment& segment : run.plan().segments) {
      if (!segment.point || segment.point->kind != PipelineItemKind::kBackwardInput) continue;
      ++num_backwards;
      EXPECT_GT(num_early(segment), 0) << segment.name << " " << recipe;
    }
    EXPECT_EQ(num_backwards, 2);
  }
}

}  // namespace
}  // namespace tokamak
