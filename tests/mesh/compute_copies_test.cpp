// Compute copies of master weights: where updates keep them, that they are casts, what they take.
#include <algorithm>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/cast.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

struct CopyCase {
  NamedMesh mesh;
  Reshard reshard = Reshard::kDefault;
};

// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const CopyCase& c, std::ostream* os) {
  PrintTo(c.mesh, os);
}

MeshCase copies_case(const CopyCase& of) {
  ModelSpec model = small_llama();
  model.num_layers = 4;
  MeshCase c = small_case(of.mesh, model);
  c.compute = DType::kBF16;
  c.distribute.reshard = of.reshard;
  return c;
}

// Counts tasks of the segment that makes compute copies.
template <class T>
int64_t count_unshard_tasks(const Plan& plan) {
  int64_t count = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.name != "unshard") continue;
    count += std::count_if(segment.tasks.begin(), segment.tasks.end(),
                           [](const Task& t) { return t.rules == &kRules<T>; });
  }
  return count;
}

struct Bytes {
  int64_t masters = 0;  ///< of this rank's slices
  int64_t copies = 0;
};

Bytes bytes_of(const PlannedRun& run) {
  Bytes bytes;
  for (int32_t i = 0; i < run.states().size(); ++i) {
    const StateDecl& decl = run.states()[{i}];
    if (decl.is_absent || decl.window_of.valid()) continue;
    if (decl.kind == StateKind::kParameter) bytes.masters += decl.type.bytes();
    if (decl.kind == StateKind::kCopy) bytes.copies += decl.type.bytes();
  }
  return bytes;
}

class KeptCopies : public ::testing::TestWithParam<CopyCase> {};

// No cast in a step, and not a byte beyond what copies made once a step would take.
TEST_P(KeptCopies, take_the_place_of_casts) {
  const MeshCase c = copies_case(GetParam());
  const int owners = c.distribute.mesh.degree({MeshAxis::kDpShard, MeshAxis::kCp});
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    const PlannedRun run(c.model, shape_of(c, rank), {});
    const Bytes bytes = bytes_of(run);
    EXPECT_EQ(bytes.copies, bytes.masters / 2 * owners);
    EXPECT_EQ(count_unshard_tasks<Cast>(run.plan()), 0);
    EXPECT_EQ(count_unshard_tasks<AllGather>(run.plan()) > 0, owners > 1);
    EXPECT_EQ(run.plan().arena_bytes[static_cast<size_t>(ArenaKind::kCarried)], 0);
    MeshCase casts = c;
    casts.distribute.keep_copies = false;
    EXPECT_LE(run.peak_bytes(), PlannedRun(c.model, shape_of(casts, rank), {}).peak_bytes());
    ASSERT_NE(run.copies_plan(), nullptr);
    EXPECT_EQ(run.copies_plan()->peak_bytes(), run.layout().bytes);
  }
}

TEST_P(KeptCopies, train_as_casts_do) {
  MeshCase c = copies_case(GetParam());
  const MeshResult kept = run_mesh(c);
  EXPECT_GT(kept.copied_elements, 0);
  c.distribute.keep_copies = false;
  const MeshResult cast = run_mesh(c);
  EXPECT_EQ(kept.loss, cast.loss);
  EXPECT_EQ(kept.grad_norm, cast.grad_norm);
  EXPECT_EQ(kept.parameters, cast.parameters);
  EXPECT_EQ(kept.first_moments, cast.first_moments);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, KeptCopies,
    ::testing::Values(CopyCase{{"one_rank", {1, 1, 1, 1, 1}}},
                      CopyCase{{"accumulated", {1, 1, 1, 1, 1}, Sharding::kDdp, 2}},
                      CopyCase{{"replicas", {1, 2, 1, 1, 1}}},
                      CopyCase{{"zero1", {1, 1, 2, 1, 1}, Sharding::kZero1, 2}},
                      CopyCase{{"zero2", {1, 1, 2, 1, 1}, Sharding::kZero2, 2}},
                      CopyCase{{"not_resharded", {1, 1, 2, 1, 1}, Sharding::kDdp}, Reshard::kNever},
                      CopyCase{{"context", {1, 1, 1, 2, 1}, Sharding::kZero1}},
                      CopyCase{{"tensor", {1, 1, 1, 1, 2}}},
                      CopyCase{{"pipeline", {2, 1, 1, 1, 1}, Sharding::kDdp, 4}},
                      CopyCase{{"pipeline_of_shards", {2, 1, 2, 1, 1}, Sharding::kDdp, 4}}),
    [](const auto& of) { return std::string(of.param.mesh.name); });

// Slices that are gathered for each pass would take memory of their own.
TEST(ComputeCopies, are_cast_where_weights_are_resharded) {
  const MeshCase c = copies_case({{"", {1, 1, 2, 1, 1}}});
  const PlannedRun run(c.model, shape_of(c, 0), {});
  EXPECT_EQ(bytes_of(run).copies, 0);
  EXPECT_EQ(run.copies_plan(), nullptr);
  const auto& notes = run.notes();
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("compute copies: cast before each gather") != std::string::npos;
  })) << fmt::format("{}", fmt::join(notes, "\n"));
  EXPECT_EQ(run_mesh(c).copied_elements, 0);
}

TEST(ComputeCopies, are_none_in_the_masters_dtype) {
  MeshCase c = copies_case({{"", {1, 1, 1, 1, 2}}});
  c.compute = DType::kF32;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  EXPECT_EQ(bytes_of(run).copies, 0);
  EXPECT_EQ(run.copies_plan(), nullptr);
}

}  // namespace
}  // namespace tokamak
