// Plans of meshes that are not run: memory by closed forms, and the largest models in little time.
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tokamak/cpu/backend.h"
#include "tokamak/exec/gathered_memory.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

int64_t bytes_of(const PlannedRun& run, std::initializer_list<StateKind> kinds) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < run.states().size(); ++i) {
    const StateDecl& decl = run.states()[{i}];
    if (decl.is_absent || decl.window_of.valid()) continue;
    for (const StateKind kind : kinds) bytes += decl.kind == kind ? decl.type.bytes() : 0;
  }
  return bytes;
}

TEST(MeshPlan, fsdp_state_falls_as_one_over_n) {
  const ModelSpec model = flavor_spec("llama3", "debugmodel");
  const int64_t parameters = count_parameters(model).total;
  for (const int n : {2, 4, 8, 64}) {
    MeshCase c{.model = model, .seq_len = 64, .global_batch = n};
    c.distribute.mesh.degrees = {1, 1, n, 1, 1};
    c.distribute.grad_store = GradStore::kSharded;
    const PlannedRun run(model, shape_of(c, n - 1), {});
    // fp32 master, two moments and the gradient.
    const int64_t got =
        bytes_of(run, {StateKind::kParameter, StateKind::kMoment, StateKind::kGradient});
    EXPECT_GE(got * n, parameters * 16);
    EXPECT_LE(static_cast<double>(got) * n, static_cast<double>(parameters) * 16 * 1.01) << n;
  }
}

TEST(MeshPlan, plans_405b_for_one_rank_of_16384) {
  const ModelSpec model = flavor_spec("llama3", "405B");
  MeshCase c{.model = model,
             .compute = DType::kBF16,
             .seq_len = 8192,
             .global_batch = 128 * 16,
             .num_microbatches = 16};
  c.distribute.mesh.degrees = {16, 1, 128, 1, 8};
  set_pipeline(c, "1F1B", 1);
  const auto begin = std::chrono::steady_clock::now();
  const PlannedRun run(model, shape_of(c, 5 * 1024 + 77), {});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  RecordProperty("seconds", std::to_string(seconds));
  RecordProperty("peak_rss_mb", std::to_string(use.ru_maxrss / 1024));
  std::printf("405B on tp8 x pp16 x dp_shard 128: %.2f s, %ld MB, plan %.1f GiB\n", seconds,
              use.ru_maxrss / 1024, static_cast<double>(run.peak_bytes()) / (1024.0 * 1024 * 1024));
#ifndef __SANITIZE_ADDRESS__  // whose own memory is more than the program's
  EXPECT_LT(use.ru_maxrss / 1024, 500);
#endif
}

// Slices of this rank's buckets: of blocks, and of embedding, norm and head.
struct Slices {
  int64_t blocks = 0;
  int64_t others = 0;
};

Slices slices_of(const MeshCase& c) {
  const PlannedRun run(c.model, shape_of(c, 0), {});
  Slices slices;
  for (int32_t i = 0; i < run.states().size(); ++i) {
    const StateDecl& decl = run.states()[{i}];
    if (decl.kind == StateKind::kParameter)
      (decl.block >= 0 ? slices.blocks : slices.others) += decl.type.numel();
  }
  return slices;
}

MeshCase traffic_case() {
  MeshCase c{.model = flavor_spec("llama3", "debugmodel"),
             .compute = DType::kBF16,
             .seq_len = 16,
             .global_batch = 8,
             .num_microbatches = 2,
             .steps = 2};
  c.model.num_layers = 3;
  c.model.vocab_size = 256;
  return c;
}

struct FsdpTraffic {
  int n;
  Reshard reshard;
  GradStore store;
  Sharding sharding;
  int block_gathers;  ///< in a step of two microbatches
  int other_gathers;
  int reductions;
};

class Fsdp : public ::testing::TestWithParam<FsdpTraffic> {};

// Gathers move compute-dtype bytes, reductions fp32 bytes, (n-1)/n of the padded bucket each.
TEST_P(Fsdp, traffic_is_the_closed_form) {
  const FsdpTraffic& t = GetParam();
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, t.n, 1, 1};
  c.distribute.reshard = t.reshard;
  c.distribute.grad_store = t.store;
  c.distribute.sharding = t.sharding;
  const Slices slices = slices_of(c);
  const auto traffic = run_mesh(c).traffic;
  EXPECT_EQ(traffic.all_gather.bytes,
            c.steps * (t.n - 1) * 2 *
                (t.block_gathers * slices.blocks + t.other_gathers * slices.others));
  EXPECT_EQ(traffic.reduce_scatter.bytes,
            c.steps * (t.n - 1) * 4 * t.reductions * (slices.blocks + slices.others));
}

INSTANTIATE_TEST_SUITE_P(
    Traffic, Fsdp,
    ::testing::Values(
        FsdpTraffic{2, Reshard::kDefault, GradStore::kFull, Sharding::kFsdp, 4, 2, 1},
        FsdpTraffic{4, Reshard::kDefault, GradStore::kFull, Sharding::kFsdp, 4, 2, 1},
        FsdpTraffic{4, Reshard::kDefault, GradStore::kSharded, Sharding::kFsdp, 4, 2, 2},
        FsdpTraffic{4, Reshard::kNever, GradStore::kFull, Sharding::kFsdp, 1, 1, 1},
        FsdpTraffic{2, Reshard::kNever, GradStore::kSharded, Sharding::kFsdp, 1, 1, 2},
        FsdpTraffic{4, Reshard::kDefault, GradStore::kAuto, Sharding::kZero1, 1, 1, 1},
        FsdpTraffic{4, Reshard::kDefault, GradStore::kAuto, Sharding::kZero2, 1, 1, 2}));

class TensorParallel : public ::testing::TestWithParam<int> {};

// With sequence parallel each layer gathers and scatters twice forward and twice backward; beside
// them the embedding scatters and its gradient gathers, the head gathers and its gradient scatters,
// and the loss gathers three fp32 statistics a token.
TEST_P(TensorParallel, traffic_is_the_closed_form) {
  const int t = GetParam();
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 1, 1, t};
  const auto traffic = run_mesh(c).traffic;
  const int64_t tokens = c.global_batch * c.seq_len;
  const int64_t bytes = tokens * c.model.dim / t * (t - 1) * 2;
  const int64_t statistics = tokens * (t - 1) * 3 * 4;
  EXPECT_EQ(traffic.all_gather.bytes,
            c.steps * ((4 * c.model.num_layers + 2) * bytes + statistics));
  EXPECT_EQ(traffic.reduce_scatter.bytes, c.steps * (4 * c.model.num_layers + 2) * bytes);
}

// Where each rank holds whole sequences, sums take the place of scatters and gathers; the numbers
// stay.
TEST_P(TensorParallel, whole_sequences_are_summed) {
  const int t = GetParam();
  MeshCase c = traffic_case();
  c.compute = DType::kF32;
  c.distribute.mesh.degrees = {1, 1, 1, 1, t};
  const auto cut = run_mesh(c);
  c.distribute.sequence_parallel = false;
  const auto whole = run_mesh(c);
  const int64_t statistics = c.global_batch * c.seq_len * (t - 1) * 3 * 4;
  EXPECT_EQ(whole.traffic.all_gather.bytes, c.steps * statistics);
  EXPECT_EQ(whole.traffic.reduce_scatter.bytes, 0);
  EXPECT_GT(whole.traffic.all_reduce.bytes, cut.traffic.all_reduce.bytes);
  for (size_t step = 0; step < whole.loss.size(); ++step)
    EXPECT_NEAR(whole.loss[step], cut.loss[step], 2e-6 * cut.loss[step]);
}

INSTANTIATE_TEST_SUITE_P(Traffic, TensorParallel, ::testing::Values(2, 4, 8));

template <class... Ts>
int64_t count_tasks(const MeshCase& c, bool only_on_other_streams) {
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int64_t count = 0;
  for (const Segment& segment : run.plan().segments) {
    count += std::count_if(segment.tasks.begin(), segment.tasks.end(), [&](const Task& task) {
      return ((task.rules == &kRules<Ts>) || ...) && (task.stream != 0 || !only_on_other_streams);
    });
  }
  return count;
}

TEST(TensorParallelPlan, even_cuts_are_not_packed) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 1, 1, 4};
  EXPECT_EQ((count_tasks<Split, Join>(c, false)), 0);
}

// Only sums of several reductions are added up by a task of their own.
TEST(FsdpPlan, a_reduction_once_a_step_writes_the_gradient) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 2, 1, 1};
  c.distribute.grad_store = GradStore::kSharded;
  EXPECT_GE(count_tasks<Accumulate>(c, true), c.model.num_layers);
  c.num_microbatches = 1;
  EXPECT_EQ(count_tasks<Accumulate>(c, true), 0);
  c.num_microbatches = 2;
  c.distribute.grad_store = GradStore::kFull;
  EXPECT_EQ(count_tasks<Accumulate>(c, true), 0);
}

// Weights that are gathered for the forward are gathered again, whether their block is recomputed
// or not.
TEST(FsdpPlan, recompute_keeps_no_gathered_weights) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 4, 1, 1};
  c.num_microbatches = 1;
  const int64_t gathers = count_tasks<AllGather>(c, true);
  EXPECT_GE(gathers, 2 * c.model.num_layers);
  for (const RecomputePolicy& policy :
       {RecomputePolicy{.mode = Mode::kSelectiveLayers, .every_nth_block = 2},
        RecomputePolicy{.mode = Mode::kSelectiveOps, .saved_ops = {"all_gather", "attention"}},
        RecomputePolicy{.mode = Mode::kFull}}) {
    c.recompute = policy;
    EXPECT_EQ(count_tasks<AllGather>(c, true), gathers) << static_cast<int>(policy.mode);
  }
}

// By group name, where each rank gathers during compute. The groups are known to be `transport`'s,
// in N arenas.
std::vector<std::map<std::string, uint64_t>> gather_layouts(const MeshCase& c, Transport transport,
                                                            size_t num_arenas = 1) {
  const Target target{.backend = "gpu", .arch = 90, .devices_per_host = c.distribute.mesh.size()};
  std::vector<std::map<std::string, uint64_t>> layouts;
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    RunShape shape = shape_of(c, rank);
    shape.copy_engines = CopyEngines::kAuto;
    const PlannedRun run(c.model, shape, target);
    const auto backend = cpu::make_backend({.threads = 1});
    const std::array plans{&run.plan()};
    const auto found = gathered_memory(plans, Memory(*backend, plans));
    layouts.emplace_back();
    for (size_t id = 0; id < found.size(); ++id) {
      if (found[id].arenas.empty()) continue;
      layouts.back()[run.plan().groups.entries[id].name] = found[id].layout;
      EXPECT_EQ(run.plan().transports[id], transport);
      EXPECT_EQ(found[id].arenas.size(), num_arenas);
    }
  }
  return layouts;
}

TEST(GatheredMemory, is_one_layout_where_ranks_plan_alike) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 2, 1, 2};
  const auto ranks = gather_layouts(c, Transport::kCopyEngines);
  ASSERT_EQ(ranks[0].size(), 1U);
  EXPECT_EQ(ranks[0].begin()->first, "dp_shard x cp gather");
  for (const auto& layouts : ranks) EXPECT_EQ(layouts, ranks[0]);
}

// The backward of a pipeline gathers again what lies in a microbatch's slot.
TEST(GatheredMemory, spans_the_slots_of_a_pipeline) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {2, 1, 1, 1, 2};
  c.distribute.gather_again = true;
  c.num_microbatches = 4;
  set_pipeline(c, "1F1B", 1);
  const auto ranks = gather_layouts(c, Transport::kCopyEngines, 2);
  for (const auto& layouts : ranks) {
    ASSERT_EQ(layouts.size(), 1U);
    EXPECT_EQ(layouts.begin()->first, "tp again");
  }
  EXPECT_EQ(ranks[0], ranks[1]);
  EXPECT_EQ(ranks[2], ranks[3]);
  EXPECT_NE(ranks[0], ranks[2]) << "stages hold unlike numbers of microbatches";
}

// The second of two ranks attends to longer parts of keys and values than the first.
TEST(GatheredMemory, differs_where_context_parallel_ranks_do) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 1, 2, 1};
  c.distribute.context = ContextMethod::kAllGather;
  c.seq_len = 4096;
  const auto ranks = gather_layouts(c, Transport::kCopyEnginesIfAlike);
  ASSERT_EQ(ranks[0].size(), 1U);
  EXPECT_EQ(ranks[0].begin()->first, "dp_shard x cp gather");
  EXPECT_NE(ranks[0], ranks[1]);
}

// The first of two ranks has a word more.
TEST(GatheredMemory, differs_where_a_vocabulary_does_not_divide) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 1, 1, 1, 2};
  c.distribute.gather_again = true;
  for (const bool is_even : {true, false}) {
    c.model.vocab_size = is_even ? 8192 : 8193;
    const auto ranks =
        gather_layouts(c, is_even ? Transport::kCopyEngines : Transport::kCopyEnginesIfAlike);
    ASSERT_EQ(ranks[0].size(), 1U);
    EXPECT_EQ(ranks[0].begin()->first, "tp again");
    EXPECT_EQ(ranks[0] == ranks[1], is_even);
  }
}

// Also where the embedding or the head, whose results are pending sums, stand alone on a stage.
TEST(TensorParallelPlan, stages_send_cut_values) {
  for (const std::vector<int>& stages :
       {std::vector<int>{0, 1, 1, 1, 1, 1}, std::vector<int>{0, 0, 0, 0, 0, 1}}) {
    MeshCase c = traffic_case();
    c.distribute.mesh.degrees = {2, 1, 1, 1, 4};
    set_pipeline(c, "1F1B", 1);
    c.distribute.stage_of_module = stages;
    int sends = 0;
    for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
      const PlannedRun run(c.model, shape_of(c, rank), {});
      for (const Segment& segment : run.plan().segments) {
        for (const Task& task : segment.tasks) {
          if (task.rules != &kRules<Send>) continue;
          ++sends;
          EXPECT_EQ(task.in[0].type.numel(),
                    c.global_batch / c.num_microbatches * c.seq_len * c.model.dim / 4)
              << segment.name;
        }
      }
    }
    EXPECT_EQ(sends, 8);
  }
}

TEST(Ddp, traffic_is_the_closed_form) {
  MeshCase c = traffic_case();
  c.distribute.mesh.degrees = {1, 4, 1, 1, 1};
  const Slices slices = slices_of(c);
  const auto traffic = run_mesh(c).traffic;
  // Gradients once a step; loss and norm are doubles of their own groups.
  const int64_t gradients = c.steps * 2 * 3 * (slices.blocks + slices.others) * 4 / 4;
  const int64_t loss = c.steps * 2 * 3 * 8 / 4;
  EXPECT_EQ(traffic.all_reduce.bytes, gradients + loss);
  EXPECT_EQ(traffic.all_gather.bytes, 0);
}

}  // namespace
}  // namespace tokamak
