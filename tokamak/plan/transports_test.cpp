#include "tokamak/plan/transports.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"

namespace tokamak {
namespace {

constexpr AxisSet kOwners{MeshAxis::kDpShard, MeshAxis::kCp};

Operand in_arena(ArenaKind arena, int64_t elements) {
  return {.arena = arena, .type = {.dtype = DType::kF32, .dims = {elements}}, .strides = {1}};
}

// Both groups have the same two ranks.
struct Groups {
  Plan plan{.segments = std::vector<Segment>(1)};

  CommGroup add(const std::string& name, AxisSet axes = kOwners) {
    return plan.groups.add({.name = name, .ranks = {0, 1}, .axes = axes}, 0);
  }

  template <class T>
  void call(const T& op, int stream, ArenaKind from = ArenaKind::kScratch) {
    plan.segments[0].tasks.push_back({.rules = &kRules<T>,
                                      .op = std::make_shared<const T>(op),
                                      .variant = &kCommunication,
                                      .in = {in_arena(from, 4)},
                                      .out = {in_arena(ArenaKind::kScratch, 8)},
                                      .accumulate = {std::nullopt},
                                      .stream = stream});
  }
};

std::vector<Transport> transports_of(Plan plan, const Target& target,
                                     const TransportOptions& options) {
  Plan* const plans[] = {&plan};
  choose_transports(plans, target, options);
  return plan.transports;
}

const Target kEightGpus{.backend = "gpu", .arch = 90, .devices_per_host = 8};
constexpr TransportOptions kOneHost{.choice = CopyEngines::kAuto, .num_ranks = 8};
const std::vector<Transport> kCopied{Transport::kCopyEngines};

TEST(Transports, CopyEnginesCarryGroupsThatOnlyGatherBesideCompute) {
  Groups g;
  const CommGroup beside = g.add("gathers during compute");
  const CommGroup sums = g.add("sums too");
  const CommGroup foreground = g.add("gathers in the foreground");
  const CommGroup slots = g.add("gathers from slots");
  const CommGroup state = g.add("gathers from State");
  g.add("has no calls");
  g.call(AllGather{.group = beside}, 1);
  g.call(AllGather{.group = beside}, 2);
  g.call(AllGather{.group = sums}, 1);
  g.call(AllReduce{.group = sums}, 1);
  g.call(AllGather{.group = foreground}, 0);
  g.call(AllGather{.group = slots}, 1, ArenaKind::kSlot);
  g.call(AllGather{.group = state}, 1, ArenaKind::kState);
  std::vector<Transport> want(6, Transport::kKernels);
  for (const CommGroup& group : {beside, slots})
    want[static_cast<size_t>(group.id)] = Transport::kCopyEngines;
  EXPECT_EQ(transports_of(g.plan, kEightGpus, kOneHost), want);
}

TEST(Transports, CopyEnginesAreOfGpusOfOneHost) {
  Groups g;
  g.call(AllGather{.group = g.add("gathers")}, 1);
  const auto of = [&](const Target& target, CopyEngines choice, int num_ranks) {
    return transports_of(g.plan, target, {.choice = choice, .num_ranks = num_ranks});
  };
  using enum CopyEngines;
  const std::vector<Transport> none;
  EXPECT_EQ(of(kEightGpus, kAuto, 8), kCopied);
  EXPECT_EQ(of(kEightGpus, kAuto, 16), std::vector{Transport::kKernels}) << "two hosts";
  EXPECT_EQ(of(kEightGpus, kAlways, 16), kCopied);
  EXPECT_EQ(of(kEightGpus, kNever, 8), none);
  EXPECT_EQ(of({.backend = "gpu", .arch = 90}, kAuto, 8), none) << "no copy engines that gather";
  EXPECT_EQ(of({}, kAuto, 8), none) << "a CPU";
  EXPECT_EQ(of({}, kAlways, 8), none) << "a CPU";
}

// Of two hosts of eight, the second group spans both.
TEST(Transports, GroupsOfOneHostUseThemInAMeshOfSeveral) {
  Groups g;
  for (const std::vector<int>& ranks : {std::vector{8, 9, 10, 11}, std::vector{7, 8}}) {
    const CommGroup group =
        g.plan.groups.add({.name = "gathers", .ranks = ranks, .axes = {MeshAxis::kTp}}, 8);
    g.call(AllGather{.group = group}, 1);
  }
  TransportOptions options{.choice = CopyEngines::kAuto, .num_ranks = 16};
  EXPECT_EQ(transports_of(g.plan, kEightGpus, options), std::vector(2, Transport::kKernels));
  options.by_group = true;
  EXPECT_EQ(transports_of(g.plan, kEightGpus, options),
            (std::vector{Transport::kCopyEngines, Transport::kKernels}));
}

TEST(Transports, RanksThatMayDifferInMemoryDecideWhenBound) {
  Groups g;
  g.call(AllGather{.group = g.add("owners")}, 1);
  g.call(AllGather{.group = g.add("tp again", {MeshAxis::kTp})}, 1);
  TransportOptions options = kOneHost;
  options.unlike = {MeshAxis::kCp};
  EXPECT_EQ(transports_of(g.plan, kEightGpus, options),
            (std::vector{Transport::kCopyEnginesIfAlike, Transport::kCopyEngines}));
}

// Communicators are shared by the plans that a rank binds.
TEST(Transports, AreChosenForAllPlansOfARank) {
  Groups training;
  const CommGroup group = training.add("owners");
  training.call(AllGather{.group = group}, 1);
  Groups validation;
  validation.add("owners");
  Plan* const both[] = {&training.plan, &validation.plan};
  choose_transports(both, kEightGpus, kOneHost);
  EXPECT_EQ(training.plan.transports, kCopied);
  EXPECT_EQ(validation.plan.transports, kCopied);
  EXPECT_EQ(training.plan.transport_of(training.plan.segments[0].tasks[0]),
            Transport::kCopyEngines);

  validation.call(AllReduce{.group = group}, 0);
  choose_transports(both, kEightGpus, kOneHost);
  EXPECT_EQ(training.plan.transports, std::vector{Transport::kKernels});
  validation.add("another");
  EXPECT_THROW(choose_transports(both, kEightGpus, kOneHost), Bug);
}

}  // namespace
}  // namespace tokamak
