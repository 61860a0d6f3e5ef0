// Whatever a run does about a bad step, it ends with the bits that the docs promise.
#include "tokamak/train/guard/bad_steps.h"

#include <cmath>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/manifest.h"
#include "tokamak/checkpoint/test_tensors.h"

#include "tests/fixtures/guarded_run.h"
#include "tests/fixtures/state_bits.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

constexpr int64_t kBadStep = 24;
constexpr int64_t kLastStep = 27;

// Spikes are far above noise: only steps that are damaged are bad.
void train_steadily(Config& config) {
  config.training.steps = kLastStep;
  config.training.seq_len = 4;
  config.training.check_replicas_every = 1;
  config.checkpoint.interval = kBadStep - 1;
  config.optimizer.lr = 1e-3;
}

// Makes the run that goes on after `clean`'s step before the bad one as if it had no batch.
void leave_bad_step_out(const fs::path& clean, const fs::path& twin) {
  const fs::path to = checkpoint_of(kBadStep, twin);
  fs::create_directories(to);
  fs::copy(checkpoint_of(kBadStep - 1, clean), to, fs::copy_options::recursive);
  Manifest manifest = CheckpointReader(to).manifest();
  manifest.info = CheckpointReader(checkpoint_of(kBadStep, clean)).manifest().info;
  Json state = parse_json(manifest.info.sections["train_state"], "clean");
  state["updates"] = kBadStep - 1;
  manifest.info.sections["train_state"] = state.dump();
  testing::write_text(to / kManifestFile, to_text(manifest));
}

enum class Injected { kNotFinite, kNormSpike, kLossSpike, kDivergence };
enum class EndsAs { kClean, kLeftOut, kLetPass, kStopped };

struct FaultCase {
  Injected fault;
  const char* policy;
  bool is_lasting;  ///< whether the step is bad whenever it runs
  EndsAs ends;
};

std::string name_of(const FaultCase& c) {
  constexpr const char* kNames[] = {"not_finite", "norm_spike", "loss_spike", "divergence"};
  return fmt::format("{}_{}{}", kNames[static_cast<int>(c.fault)], c.policy,
                     c.is_lasting ? "_lasting" : "");
}

std::string& policy_key(Config& config, Injected fault) {
  if (fault == Injected::kNotFinite) return config.training.on_nonfinite;
  if (fault == Injected::kDivergence) return config.training.on_divergent_replicas;
  return config.training.on_spike;
}

// Multiplies the token embedding and the head, with which the first and the last bucket begin.
void scale(const StateAccess& access, float embedding, float head) {
  constexpr int64_t kNumel = 512 * 64;
  const auto buckets = access.states().of_kind(StateKind::kParameter);
  for (const auto& [bucket, factor] :
       {std::pair{buckets.front(), embedding}, {buckets.back(), head}}) {
    auto values = access.read<float>(bucket);
    std::for_each_n(values.begin(), kNumel, [&](float& value) { value *= factor; });
    access.write<float>(bucket, values);
  }
}

// Before the bad step, damages State; before whatever runs next, takes that back unless State was
// loaded meanwhile. Both factors are powers of two, so that nothing is rounded.
struct Damage {
  Injected fault;
  bool is_lasting;
  bool is_loaded_over;
  float kept = 0.0F;
  bool is_done = false;
  bool is_on = false;

  void operator()(int rank, int64_t step, const StateAccess& access) {
    if (std::exchange(is_on, false) && !is_loaded_over) apply(access, false);
    if (step != kBadStep || (is_done && !is_lasting)) return;
    is_on = is_done = true;
    if (fault != Injected::kDivergence || rank == 1) apply(access, true);
  }

  void apply(const StateAccess& access, bool begins) {
    if (fault == Injected::kLossSpike) {
      // Logits grow with the head, but gradients of all layers shrink as what enters them grows.
      scale(access, begins ? 0x1p12F : 0x1p-12F, begins ? 0x1p6F : 0x1p-6F);
      return;
    }
    if (begins) kept = element(access);
    const float bad = fault == Injected::kNotFinite   ? kNaN
                      : fault == Injected::kNormSpike ? 1e4F
                                                      : 0.25F;
    set_element(access, begins ? bad : kept);
  }
};

void run_case(GuardedRun& run, const FaultCase& c) {
  train_steadily(run.config);
  policy_key(run.config, c.fault) = c.policy;
  std::vector<Damage> of_rank(2,
                              Damage{.fault = c.fault,
                                     .is_lasting = c.is_lasting,
                                     .is_loaded_over = std::string_view(c.policy) == "rollback"});
  run.before_step = [&](int rank, int64_t step, const StateAccess& access, float&, int&) {
    of_rank[rank](rank, step, access);
  };
  run.run();
}

TEST(BadSteps, EveryPolicyEndsInTheStateThatItPromises) {
  const ScratchFolder scratch;
  const std::array<int64_t, 5> replicas{1, 2, 1, 1, 1};
  const auto run_of = [&](const std::string& name) {
    return std::make_unique<GuardedRun>(scratch.path() / name, replicas);
  };
  const auto clean = run_of("clean");
  train_steadily(clean->config);
  clean->config.checkpoint.interval = 1;
  clean->run();
  leave_bad_step_out(scratch.path() / "clean", scratch.path() / "left_out");
  const auto left_out = run_of("left_out");
  train_steadily(left_out->config);
  left_out->run();
  using enum Injected;
  using enum EndsAs;
  const FaultCase cases[] = {
      {kNotFinite, "stop", false, kStopped},    {kNotFinite, "skip", false, kLeftOut},
      {kNotFinite, "replay", false, kClean},    {kNotFinite, "replay", true, kLeftOut},
      {kNotFinite, "rollback", false, kClean},  {kNotFinite, "rollback", true, kLeftOut},
      {kNormSpike, "off", false, kLetPass},     {kNormSpike, "warn", false, kLetPass},
      {kNormSpike, "stop", false, kStopped},    {kNormSpike, "skip", false, kLeftOut},
      {kNormSpike, "replay", false, kClean},    {kNormSpike, "replay", true, kLeftOut},
      {kNormSpike, "rollback", false, kClean},  {kNormSpike, "rollback", true, kLeftOut},
      {kLossSpike, "off", false, kLetPass},     {kLossSpike, "warn", false, kLetPass},
      {kLossSpike, "stop", false, kStopped},    {kLossSpike, "skip", false, kLetPass},
      {kLossSpike, "replay", false, kLetPass},  {kLossSpike, "rollback", false, kClean},
      {kLossSpike, "rollback", true, kLeftOut}, {kDivergence, "stop", false, kStopped},
      {kDivergence, "rollback", false, kClean},
  };
  std::map<Injected, fs::path> let_pass;
  for (const FaultCase& c : cases) {
    SCOPED_TRACE(name_of(c));
    const fs::path dump = scratch.path() / name_of(c);
    const auto run = run_of(name_of(c));
    if (c.ends == kStopped) {
      EXPECT_ANY_THROW(run_case(*run, c));
      EXPECT_EQ(state_after(kBadStep - 1, dump),
                state_after(kBadStep - 1, scratch.path() / "clean"));
      EXPECT_FALSE(path_exists(checkpoint_of(kLastStep, dump)));
      continue;
    }
    run_case(*run, c);
    const std::string_view of = c.fault == kLossSpike ? ": loss " : ": gradient norm ";
    if (c.fault != kNotFinite && c.fault != kDivergence && std::string_view(c.policy) != "off") {
      EXPECT_NE(run->log.find(fmt::format("step {}{}", kBadStep, of)), std::string::npos)
          << run->log;
    }
    const auto got = state_after(kLastStep, dump);
    if (c.ends == kLetPass) {
      // The first of these runs is that of "off".
      const fs::path twin = let_pass.emplace(c.fault, dump).first->second;
      EXPECT_EQ(got, state_after(kLastStep, twin));
      EXPECT_NE(got, state_after(kLastStep, scratch.path() / "clean"));
    } else {
      const char* twin = c.ends == kClean ? "clean" : "left_out";
      EXPECT_EQ(got, state_after(kLastStep, scratch.path() / twin));
    }
  }
}

// torch.optim counts the calls of step(), which training loops leave out at a bad step.
TEST(BadSteps, AdamCountsTheUpdatesThatWereMade) {
  const ScratchFolder scratch;
  for (const std::string policy : {"skip", "replay", "rollback"}) {
    SCOPED_TRACE(policy);
    std::vector<std::string> seen;
    const auto run_until = [&](int64_t steps) {
      GuardedRun run(scratch.path() / policy);
      run.config.training.steps = steps;
      run.config.training.on_nonfinite = policy;
      run.config.optimizer.beta1 = 0.5;
      float kept = 0.0F;
      bool is_damaged = false;
      run.before_step = [&](int, int64_t step, const StateAccess& access, float&, int&) {
        // The scalars of the previous attempt: 1 - 0.5^t and the counter of stochastic rounding.
        const auto scalars = access.read<double>(access.states().find("scalars"));
        if (scalars[3] > 0.0)
          seen.push_back(fmt::format("{}:{}", scalars[3], -std::log2(1.0 - scalars[1])));
        if (std::exchange(is_damaged, false) && policy != "rollback") set_element(access, kept);
        if (step != 3 && step != 4) return;
        kept = element(access);
        set_element(access, kNaN);
        is_damaged = true;
      };
      run.run();
    };
    run_until(5);
    run_until(7);
    const std::vector<std::string> want =
        policy == "skip"
            ? std::vector<std::string>{"1:1", "2:2", "3:3", "4:3", "6:4"}
            : std::vector<std::string>{"1:1", "2:2", "3:3", "3:3", "4:3", "4:3", "6:4"};
    EXPECT_EQ(seen, want);
  }
}

// Adam's first update moves each weight by the learning rate, whichever step makes it.
TEST(BadSteps, TheFirstUpdateAfterASkippedStepIsAdamsFirst) {
  const ScratchFolder scratch;
  GuardedRun run(scratch.path() / "run");
  run.config.training.steps = 3;
  run.config.training.on_nonfinite = "skip";
  run.config.optimizer.lr = 0.01;
  run.config.optimizer.weight_decay = 0.0;
  std::vector<float> values;
  run.before_step = [&](int, int64_t step, const StateAccess& access, float&, int&) {
    if (step == 2) set_element(access, values[0]);
    values.push_back(element(access));
    if (step == 1) set_element(access, kNaN);
  };
  run.run();
  ASSERT_EQ(values.size(), 3U);
  EXPECT_EQ(values[1], values[0]);
  EXPECT_NEAR(std::abs(values[2] - values[1]), 0.01F, 1e-5F);
}

}  // namespace
}  // namespace tokamak
