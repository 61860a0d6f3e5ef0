// Runs find steps that go wrong, replicas that differ and ranks that are slow, and act on them.
#include <cmath>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/comm/flight.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/train/guard/bad_gradients.h"
#include "tokamak/train/guard/replica_check.h"
#include "tokamak/train/guard/slow_ranks.h"
#include "tokamak/train/guard/step_guard.h"
#include "tokamak/train/state/saved_keys.h"
#include "tokamak/train/together.h"

#include "tests/fixtures/guarded_run.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

TEST(Guard, AStepThatIsNotFiniteStopsIsSkippedOrRunsAgain) {
  const ScratchFolder scratch;
  GuardedRun clean(scratch.path() / "clean");
  clean.run();

  GuardedRun stop(scratch.path() / "stop");
  stop.damage(3, kNaN, true);
  EXPECT_THROW(stop.run(), Diverged);

  GuardedRun skip(scratch.path() / "skip");
  skip.config.training.on_nonfinite = "skip";
  skip.damage(3, kNaN, true);
  skip.run();
  EXPECT_NE(skip.log.find("step 3: loss nan, gradient norm nan: its update was left out"),
            std::string::npos)
      << skip.log;
  const auto lines = lines_of(scratch.path() / "skip" / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_TRUE(lines[2]["loss"].is_null());
  EXPECT_TRUE(lines[3]["loss"].is_number());

  GuardedRun replay(scratch.path() / "replay");
  replay.config.training.on_nonfinite = "replay";
  replay.damage(3, kNaN, true);
  replay.run();
  EXPECT_NE(replay.log.find("step 3: loss nan, gradient norm nan: the step runs again"),
            std::string::npos);
  EXPECT_NE(replay.log.find("a fault of a device that has passed"), std::string::npos);
  expect_equal_losses(scratch.path() / "replay", scratch.path() / "clean");
}

TEST(Guard, ARollbackGoesOnFromTheLastCheckpoint) {
  const ScratchFolder scratch;
  for (const auto& degrees : {std::array<int64_t, 5>{1, 1, 1, 1, 1}, {1, 1, 2, 1, 1}}) {
    const std::string of = fmt::format("{}", degrees[2]);
    GuardedRun clean(scratch.path() / ("clean" + of), degrees);
    clean.run();
    GuardedRun back(scratch.path() / ("back" + of), degrees);
    back.config.training.on_nonfinite = "rollback";
    back.damage(6, kNaN, false);
    back.run();
    EXPECT_NE(back.log.find("going back to the last checkpoint"), std::string::npos) << back.log;
    EXPECT_NE(back.log.find("step-4"), std::string::npos) << back.log;
    expect_equal_losses(scratch.path() / ("back" + of), scratch.path() / ("clean" + of));
    GuardedRun anew(scratch.path() / ("anew" + of), degrees);
    anew.config.training.on_nonfinite = "rollback";
    anew.config.checkpoint.enable = false;
    anew.damage(2, kNaN, false);
    anew.run();
    expect_equal_losses(scratch.path() / ("anew" + of), scratch.path() / ("clean" + of));
  }
}

TEST(Guard, SpikesAreSaidLeftOutOrRolledBack) {
  const ScratchFolder scratch;
  const auto make = [&](const std::string& policy) {
    auto run = std::make_unique<GuardedRun>(scratch.path() / policy);
    run->config.training.steps = 26;
    run->config.training.seq_len = 4;
    run->config.training.on_spike = policy;
    run->config.checkpoint.interval = 5;
    run->config.optimizer.lr = 1e-4;
    return run;
  };
  const auto clean = make("off");
  clean->run();
  for (const std::string policy : {"warn", "skip", "replay", "rollback"}) {
    const auto run = make(policy);
    run->damage(24, 1e4F, policy != "rollback");
    run->run();
    EXPECT_NE(run->log.find("step 24: gradient norm "), std::string::npos) << run->log;
    EXPECT_EQ(run->log.find("its update was left out") != std::string::npos, policy == "skip");
    if (policy == "replay" || policy == "rollback")
      expect_equal_losses(scratch.path() / policy, scratch.path() / "off");
    if (policy == "warn") {
      EXPECT_NE(run->log.find("comes 1 steps after a bad one"), std::string::npos) << run->log;
    }
  }
  const auto stop = make("stop");
  stop->damage(24, 1e4F, true);
  EXPECT_THROW(stop->run(), Diverged);
}

TEST(Guard, TheRankWhoseLossIsNotFiniteIsNamed) {
  const ScratchFolder scratch;
  for (const auto& degrees : {std::array<int64_t, 5>{1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}}) {
    const bool is_replicated = degrees[1] == 2;  // a shard of a weight reaches all ranks
    GuardedRun run(scratch.path() / (is_replicated ? "ddp" : "fsdp"), degrees);
    run.config.training.on_nonfinite = "skip";
    run.damage(3, kNaN, true, 1);
    run.run();
    const std::string_view whose = is_replicated ? "rank 1" : "every rank";
    EXPECT_NE(
        run.log.find(fmt::format("step 3: loss nan, gradient norm nan in the loss of {}", whose)),
        std::string::npos)
        << run.log;
    EXPECT_EQ(run.log.find(" alone: its update was left out") != std::string::npos, is_replicated);
  }
}

TEST(Guard, EveryParametersGradientIsFound) {
  const ScratchFolder scratch;
  for (const auto& degrees :
       {std::array<int64_t, 5>{1, 1, 1, 1, 1}, {1, 2, 1, 1, 1}, {1, 1, 2, 1, 2}, {2, 1, 2, 1, 1}}) {
    GuardedRun run(scratch.path() / fmt::format("{}", fmt::join(degrees, "-")), degrees);
    std::mutex mutex;
    int found = 0;
    run.before_step = [&](int, int64_t, const StateAccess& access, float&, int&) {
      const std::scoped_lock lock(mutex);
      for (const StateId parameter : access.states().of_kind(StateKind::kParameter)) {
        const StateDecl& decl = access.states()[parameter];
        if (decl.is_absent || decl.window_of.valid()) continue;
        EXPECT_TRUE(gradient_of(access.states(), parameter).valid()) << decl.name;
        ++found;
      }
    };
    run.run();
    EXPECT_GT(found, 0);
  }
}

// Two stages with a bucket of two parameters each.
TEST(Guard, TheParametersWhoseGradientsAreNotFiniteAreNamed) {
  std::array<std::string, 2> texts;
  std::string host;
  const auto look = [&](const std::function<void(int rank, std::vector<float>& gradient)>& damage) {
    run_ranks(2, [&](World& world) {
      const auto backend = cpu::make_backend({.threads = 1});
      const int rank = world.rank();
      if (rank == 0) host = world.flights().host;
      StateTable states;
      const TensorType type{.dtype = DType::kF32, .dims = {7}};
      const StateId weights =
          states.declare({.name = "weights.s0.m1", .type = type, .kind = StateKind::kParameter});
      const StateId gradient =
          states.declare({.name = "gradient.s0.m1", .type = type, .kind = StateKind::kGradient});
      const StateLayout layout = lay_out(states);
      Plan plan;
      plan.arena_bytes[ArenaKind::kState] = layout.bytes;
      const Plan* plans[] = {&plan};
      const Memory memory(*backend, plans);
      const StateAccess access(memory, states, layout);
      std::vector<TensorPiece> pieces;
      for (const auto& [name, offset, end] : {std::tuple{"wq", 0, 3}, {"wo", 3, 4}}) {
        pieces.push_back({.tensor = fmt::format("layer.{}.{}", rank, name),
                          .type = {.dtype = DType::kF32, .dims = {end}},
                          .end = end,
                          .state = weights,
                          .offset = offset});
      }
      std::vector<float> values(7, 1.0F);
      damage(rank, values);
      access.write<float>(gradient, values);
      texts[rank] = gradients_not_finite(world, access, pieces);
    });
    EXPECT_EQ(texts[0], texts[1]);
    return texts[0];
  };
  EXPECT_EQ(look([](int, auto&) {}), "");
  const std::string one =
      look([](int rank, auto& gradient) { gradient[3] = rank == 1 ? kNaN : 1.0F; });
  EXPECT_EQ(one, fmt::format(": the gradients of layer.1.wo (rank 1 {}) are not finite", host));
  const std::string two = look([](int rank, auto& gradient) {
    gradient[0] = kNaN;
    gradient[6] = rank == 1 ? INFINITY : 1.0F;
  });
  EXPECT_EQ(two, fmt::format(": the gradients of layer.0.wq (rank 0 {}); of layer.1.wo and "
                             "of 1 before it in the model (rank 1 {}) are not finite",
                             host, host));
}

TEST(Guard, TheRankOfADivergentReplicaAndItsTensorAreNamed) {
  const ScratchFolder scratch;
  for (const int64_t replicas : {2, 4}) {
    const std::array<int64_t, 5> degrees{1, replicas, 1, 1, 1};
    const std::string of = fmt::format("{}", replicas);
    GuardedRun clean(scratch.path() / ("clean" + of), degrees);
    clean.config.training.check_replicas_every = 1;
    clean.run();
    EXPECT_EQ(clean.log.find("replicas differ"), std::string::npos);
    GuardedRun stop(scratch.path() / ("stop" + of), degrees);
    stop.config.training.check_replicas_every = 1;
    stop.damage(3, 0.25F, false, 1);
    try {
      stop.run();
      FAIL() << "nothing was noticed";
    } catch (const SystemError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("step 3: replicas differ: "), std::string::npos) << text;
      EXPECT_NE(text.find("lm_head.weight"), std::string::npos) << text;
      EXPECT_NE(text.find(replicas == 2 ? "ranks 0, 1" : "of rank 1 "), std::string::npos) << text;
    }
    GuardedRun back(scratch.path() / ("back" + of), degrees);
    back.config.training.check_replicas_every = 1;
    back.config.training.on_divergent_replicas = "rollback";
    back.damage(3, 0.25F, false, 1);
    back.run();
    expect_equal_losses(scratch.path() / ("back" + of), scratch.path() / ("clean" + of));
  }
}

TEST(Guard, ReplicasOfEveryMeshAgree) {
  const ScratchFolder scratch;
  const std::vector<std::array<int64_t, 5>> meshes{
      {1, 2, 2, 1, 1}, {1, 2, 1, 1, 2}, {1, 1, 2, 2, 1}, {2, 2, 1, 1, 1}, {1, 1, 1, 1, 4}};
  for (const auto& degrees : meshes) {
    for (const std::string type : {"fsdp", "zero1"}) {
      GuardedRun run(scratch.path() / fmt::format("{}{}", type, fmt::join(degrees, "-")), degrees);
      run.config.parallelism.data_parallel_type = type;
      run.config.training.steps = 3;
      run.config.training.check_replicas_every = 1;
      EXPECT_NO_THROW(run.run()) << type << " " << fmt::format("{}", fmt::join(degrees, " "));
    }
  }
}

TEST(Guard, ASlowRankIsNamedWithItsPhase) {
  const Mesh mesh{.degrees = {1, 1, 4, 1, 1}};
  run_ranks(4, [&](World& world) {
    SlowRanks slow(world, mesh, {.factor = 1.5, .lines = 2});
    const auto add = [&](double backward) {
      return slow.add({.data = 0.0,
                       .forward = 1.0,
                       .backward = world.rank() == 2 ? backward : 2.0,
                       .optimizer = 0.1});
    };
    EXPECT_EQ(add(9.0), "");  // the first step of a run is no measure
    EXPECT_EQ(add(3.5), "");
    EXPECT_EQ(add(5.0), "");
    EXPECT_NE(add(5.0).find("rank 2 on "), std::string::npos);
    EXPECT_EQ(add(2.0), "");
    EXPECT_EQ(add(5.0), "");
    const std::string line = add(5.0);
    EXPECT_NE(line.find("6.100 s of work in a step where the median is 3.100 s, most in backward"),
              std::string::npos)
        << line;
  });
}

TEST(Guard, ASpikeIsFarAboveTheRecentValues) {
  RecentValues values(10.0);
  for (int i = 0; i < 19; ++i) values.add(2.0 + 0.01 * i);
  EXPECT_TRUE(std::isinf(values.limit()));
  for (int i = 19; i < 300; ++i) values.add(2.0 + 0.01 * (i % 20));
  EXPECT_GT(values.limit(), 3.5);
  EXPECT_LT(values.limit(), 4.5);
  RecentValues never(0.0);
  for (int i = 0; i < 100; ++i) never.add(1.0);
  EXPECT_TRUE(std::isinf(never.limit()));
}

TEST(Guard, ChangedKeysAreSaidInOneLine) {
  const ScratchFolder scratch;
  GuardedRun first(scratch.path() / "run");
  first.config.training.steps = 2;
  first.run();
  GuardedRun second(scratch.path() / "run");
  second.config.training.steps = 4;
  second.config.optimizer.beta2 = 0.5;
  second.config.metrics.log_freq = 7;
  second.run();
  for (const char* line : {"The run has another length than before: training.steps 2 (now 4)\n",
                           "with other keys: optimizer.beta2 0.95 (now 0.5)\n"})
    EXPECT_NE(second.log.find(line), std::string::npos) << second.log;
}

}  // namespace
}  // namespace tokamak
