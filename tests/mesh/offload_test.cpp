// Masters and moments in host memory: the plan says which, and no bit changes.
#include <gtest/gtest.h>

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

struct OffloadCase {
  NamedMesh mesh;
  DType compute = DType::kBF16;
  std::optional<DType> state;
};

// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const OffloadCase& c, std::ostream* os) {
  PrintTo(c.mesh, os);
}

MeshCase offload_case(const OffloadCase& of) {
  MeshCase c = small_case(of.mesh);
  c.compute = of.compute;
  c.state = of.state;
  return c;
}

int64_t bytes_of(const PlannedRun& run, StateKind kind) {
  int64_t bytes = 0;
  for (const StateId id : run.states().of_kind(kind)) {
    const StateDecl& decl = run.states()[id];
    if (decl.is_absent || decl.window_of.valid()) continue;
    bytes += (decl.type.bytes() + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }
  return bytes;
}

class Offload : public ::testing::TestWithParam<OffloadCase> {};

TEST_P(Offload, moves_state_and_changes_no_bit) {
  MeshCase c = offload_case(GetParam());
  const MeshResult want = run_mesh(c);
  const PlannedRun without(c.model, shape_of(c, 0), {});
  c.offload.enable = true;
  const PlannedRun with(c.model, shape_of(c, 0), {});
  // Matmuls read masters in the compute dtype themselves.
  const bool moves_masters = c.compute != DType::kF32;
  EXPECT_EQ(with.host_bytes(), bytes_of(without, StateKind::kMoment) +
                                   (moves_masters ? bytes_of(without, StateKind::kParameter) : 0));
  EXPECT_EQ(with.peak_bytes() + with.host_bytes(), without.peak_bytes());
  int64_t listed = 0;
  int64_t listed_in_host = 0;
  for (const MemoryRow& row : with.plan().memory) {
    listed += row.bytes;
    listed_in_host += row.host_bytes;
  }
  EXPECT_EQ(listed, with.peak_bytes());
  EXPECT_EQ(listed_in_host, with.host_bytes());
  const MeshResult got = run_mesh(c);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.grad_norm, want.grad_norm);
  EXPECT_EQ(got.parameters, want.parameters);
  EXPECT_EQ(got.first_moments, want.first_moments);
}

// Units go one after the other until the rest fits, and no further.
TEST_P(Offload, moves_what_lies_above_a_limit) {
  MeshCase c = offload_case(GetParam());
  const MeshResult want = run_mesh(c);
  const int64_t peak = PlannedRun(c.model, shape_of(c, 0), {}).peak_bytes();
  c.offload.enable = true;
  const int64_t all = PlannedRun(c.model, shape_of(c, 0), {}).host_bytes();
  c.offload.device_bytes = peak;
  EXPECT_EQ(PlannedRun(c.model, shape_of(c, 0), {}).host_bytes(), 0);
  c.offload.device_bytes = peak - all / 3;
  const PlannedRun part(c.model, shape_of(c, 0), {});
  EXPECT_LE(part.peak_bytes(), *c.offload.device_bytes);
  EXPECT_GE(part.host_bytes(), all / 3);
  EXPECT_LT(part.host_bytes(), all);
  EXPECT_EQ(part.peak_bytes() + part.host_bytes(), peak);
  c.offload.device_bytes = 1;
  EXPECT_EQ(PlannedRun(c.model, shape_of(c, 0), {}).host_bytes(), all);
  c.offload.device_bytes = peak - all / 3;
  EXPECT_EQ(run_mesh(c).parameters, want.parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Offload,
    ::testing::Values(OffloadCase{{"one_rank", {1, 1, 1, 1, 1}, Sharding::kFsdp, 2}},
                      OffloadCase{{"fp32", {1, 1, 2, 1, 1}, Sharding::kFsdp, 2}, DType::kF32},
                      OffloadCase{{"zero1_bf16_moments", {1, 1, 2, 1, 1}, Sharding::kZero1, 2},
                                  DType::kBF16,
                                  DType::kBF16},
                      OffloadCase{{"fsdp_tp", {1, 1, 2, 1, 2}, Sharding::kFsdp, 2}},
                      OffloadCase{{"pp_tp", {2, 1, 1, 1, 2}, Sharding::kFsdp, 2}}),
    [](const auto& of) { return std::string(of.param.mesh.name); });

}  // namespace
}  // namespace tokamak
