// Moments in bfloat16, rounded stochastically: every element by the same random bits on any mesh.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/slice.h"
#include "tokamak/core/random.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/train/state/pieces.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

MeshCase moments_case(const NamedMesh& mesh) {
  MeshCase c = small_case(mesh);
  c.state = DType::kBF16;
  c.seed = 5;
  return c;
}

class Bf16Moments : public ::testing::TestWithParam<NamedMesh> {};

// The update and the checkpoint agree on the place of each element.
TEST_P(Bf16Moments, are_rounded_by_their_places_in_whole_tensors) {
  const MeshCase c = moments_case(GetParam());
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    const PlannedRun run(c.model, shape_of(c, rank), {});
    std::map<std::pair<uint64_t, int64_t>, const TensorPiece*> pieces;  // by stream, offset
    int64_t elements = 0;
    for (const TensorPiece& piece : run.pieces()) {
      if (piece.kind != StateKind::kParameter) continue;
      pieces[{stream_of(piece.tensor), piece.offset}] = &piece;
      elements += piece.numel();
    }
    for (const Segment& segment : run.plan().segments) {
      for (const Task& task : segment.tasks) {
        if (task.rules != &kRules<AdamW>) continue;
        const auto& op = *static_cast<const AdamW*>(task.op.get());
        ASSERT_TRUE(op.is_stochastic);
        EXPECT_EQ(op.seed, c.seed);
        std::vector<AdamW::DecayRange> ranges = op.ranges;
        if (ranges.empty()) ranges = {{.end = task.in[0].type.numel(), .stream = op.stream}};
        for (const AdamW::DecayRange& r : ranges) {
          const auto it = pieces.find({r.stream, r.begin});
          ASSERT_NE(it, pieces.end()) << r.begin;
          const TensorPiece& piece = *it->second;
          ASSERT_EQ(r.end - r.begin, piece.numel());
          elements -= piece.numel();
          for_each_shared_run(whole_slice(piece.type.dims), slice_of(piece),
                              [&](int64_t whole, int64_t at, int64_t n) {
                                for (int64_t i = 0; i < n; ++i)
                                  ASSERT_EQ(r.places(at + i), whole + i) << piece.tensor;
                                ASSERT_GE(r.places.run(at), n);
                              });
        }
      }
    }
    EXPECT_EQ(elements, 0);
  }
}

double unequal_share(const std::map<std::string, std::vector<float>>& a,
                     const std::map<std::string, std::vector<float>>& b) {
  double unequal = 0.0;
  double all = 0.0;
  for (const auto& [name, values] : a) {
    const std::vector<float>& others = b.at(name);
    for (size_t i = 0; i < values.size(); ++i) unequal += values[i] != others[i] ? 1.0 : 0.0;
    all += static_cast<double>(values.size());
  }
  return unequal / all;
}

// Gradients that were summed in another order are rounded to the other side now and then.
TEST_P(Bf16Moments, are_those_of_one_rank) {
  const MeshCase c = moments_case(GetParam());
  expect_as_one_rank(c);
  MeshCase one = c;
  one.distribute = {};
  const MeshResult want = run_mesh(one);
  EXPECT_LT(unequal_share(run_mesh(c).first_moments, want.first_moments), 0.01);
  one.seed = 6;
  const MeshResult first = run_mesh(one);
  EXPECT_NE(first.first_moments, want.first_moments);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Bf16Moments,
    ::testing::Values(NamedMesh{"one_rank", {1, 1, 1, 1, 1}, Sharding::kFsdp, 2},
                      NamedMesh{"ddp", {1, 2, 1, 1, 1}},
                      NamedMesh{"fsdp", {1, 1, 4, 1, 1}, Sharding::kFsdp, 2},
                      NamedMesh{"zero1_tp", {1, 1, 2, 1, 2}, Sharding::kZero1},
                      NamedMesh{"shared_kv", {1, 1, 1, 1, 4}}, NamedMesh{"cp_tp", {1, 1, 1, 2, 2}},
                      NamedMesh{"pp_fsdp_tp", {2, 1, 2, 1, 2}, Sharding::kFsdp, 2}),
    [](const auto& of) { return std::string(of.param.name); });

// Sharding moves moments between ranks, but all sums keep their order, so no bit changes.
TEST(Bf16MomentBits, do_not_depend_on_who_holds_them) {
  MeshCase c = moments_case({"ddp", {1, 2, 1, 1, 1}});
  c.compute = DType::kBF16;
  const MeshResult want = run_mesh(c);
  for (const Sharding sharding : {Sharding::kZero1, Sharding::kFsdp}) {
    MeshCase sharded = moments_case({"sharded", {1, 1, 2, 1, 1}, sharding});
    sharded.compute = DType::kBF16;
    for (const auto mode : {RecomputePolicy::Mode::kNone, RecomputePolicy::Mode::kFull}) {
      sharded.recompute.mode = mode;
      const MeshResult got = run_mesh(sharded);
      EXPECT_EQ(got.first_moments, want.first_moments);
      EXPECT_EQ(got.parameters, want.parameters);
      EXPECT_EQ(got.loss, want.loss);
    }
  }
}

// Two bytes for each moment instead of four, and nothing else but alignment.
TEST(Bf16MomentBytes, are_half) {
  MeshCase c = moments_case({"fsdp", {1, 1, 2, 1, 2}});
  const PlannedRun half(c.model, shape_of(c, 0), {});
  c.state.reset();
  const PlannedRun full(c.model, shape_of(c, 0), {});
  const auto moments = [](const PlannedRun& run) {
    int64_t bytes = 0;
    for (const StateId id : run.states().of_kind(StateKind::kMoment))
      bytes += run.states()[id].type.bytes();
    return bytes;
  };
  EXPECT_EQ(2 * moments(half), moments(full));
  EXPECT_NEAR(static_cast<double>(full.peak_bytes() - half.peak_bytes()),
              static_cast<double>(moments(half)), 0.05 * static_cast<double>(moments(half)));
}

}  // namespace
}  // namespace tokamak
