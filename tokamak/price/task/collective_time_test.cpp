#include "tokamak/price/task/collective_time.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

constexpr Collective kAll[] = {Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllReduce, Collective::kAllToAll,
                               Collective::kBroadcast, Collective::kSendRecv};

double all_reduce(const Machine& m, double bytes, int size, int stride = 1) {
  return collective_seconds(Collective::kAllReduce, bytes, strided_layout(size, stride, m), m);
}

// Sizes double from `first` on.
double mean_error(const Machine& m, int size, double first_bytes,
                  const std::vector<double>& measured_s) {
  double sum = 0.0;
  double bytes = first_bytes;
  for (const double measured : measured_s) {
    sum += std::abs(all_reduce(m, bytes, size) / measured - 1.0);
    bytes *= 2.0;
  }
  return sum / static_cast<double>(measured_s.size());
}

// Bus bandwidths in GB/s, as nccl-tests count them, to seconds.
std::vector<double> seconds_of(int size, double bytes, const std::vector<double>& bus) {
  std::vector<double> seconds;
  for (const double rate : bus) {
    seconds.push_back(2.0 * (size - 1) / size * bytes / (1e9 * rate));
    bytes *= 2.0;
  }
  return seconds;
}

std::vector<double> from_us(std::vector<double> times) {
  for (double& t : times) t *= 1e-6;
  return times;
}

constexpr double k32Kib = 32768.0;

// A ring of n passes a part on n - 1 times and stores the last.
TEST(CollectiveTime, RingsEndInTheirOwnMemory) {
  Machine machine = load_machine("h200");
  const double bytes = 1e9;
  const auto time = [&](Collective kind, int size) {
    return collective_seconds(kind, bytes, strided_layout(size, 1, machine), machine);
  };
  const double gather2 = time(Collective::kAllGather, 2);
  const double gather4 = time(Collective::kAllGather, 4);
  const double reduce2 = time(Collective::kAllReduce, 2);
  const double sent = time(Collective::kSendRecv, 2);
  machine.levels[0].ring_end_bytes_per_s = 0.0;
  const double end = bytes / load_machine("h200").levels[0].ring_end_bytes_per_s;
  EXPECT_NEAR(gather2 - time(Collective::kAllGather, 2), end / 2, 1e-9);
  EXPECT_NEAR(gather4 - time(Collective::kAllGather, 4), end / 4, 1e-9);
  EXPECT_NEAR(reduce2 - time(Collective::kAllReduce, 2), end / 2, 1e-9);
  EXPECT_EQ(sent, time(Collective::kSendRecv, 2));
}

// tokamak bench comm on two H200 (NCCL 2.28, rings), microseconds from 16 MiB to 1 GiB, by 4.
TEST(CollectiveTime, MeetsTwoH200) {
  const Machine h200 = load_machine("h200");
  const std::pair<Collective, std::vector<double>> us[] = {
      {Collective::kAllGather, {53.1, 156.6, 549.5, 1985.5}},
      {Collective::kReduceScatter, {50.3, 159.4, 563.1, 1960.5}},
      {Collective::kAllReduce, {80.5, 257.3, 900.2, 3318.5}},
      {Collective::kAllToAll, {53.9, 137.2, 472.8, 1619.1}},
      {Collective::kBroadcast, {58.7, 200.2, 743.7, 2920.0}},
      {Collective::kSendRecv, {81.5, 254.0, 881.4, 2976.5}}};
  double sum = 0.0;
  for (const auto& [kind, times] : us) {
    double bytes = 512 * k32Kib;
    for (const double t : times) {
      const double s = collective_seconds(kind, bytes, strided_layout(2, 1, h200), h200);
      sum += std::abs(s / (1e-6 * t) - 1.0) / 24.0;
      bytes *= 4.0;
    }
  }
  EXPECT_LE(sum, 0.1);
}

// VIA-Research/vTrain f8dda84 trace/a100: sizes that double from 1 MiB to 1 GiB.
TEST(CollectiveTime, MeetsTheTableOfA100) {
  const Machine a100 = load_machine("a100-80");
  const std::pair<int, std::vector<double>> us[] = {
      {2, {44.21, 53.43, 61.18, 86.9, 131.9, 230, 404.7, 763.6, 1455.8, 2838.4, 5442.8}},
      {4, {51.4, 55.74, 77.32, 116.8, 179.6, 284.2, 543.8, 998.6, 1929, 3720, 7259.4}},
      {8, {92.79, 93.25, 95.8, 134.3, 232.4, 358.1, 579.9, 1162, 2162.3, 4191.5, 8193}}};
  for (const auto& [size, times] : us) {
    EXPECT_LE(mean_error(a100, size, 32 * k32Kib, from_us(times)), 0.08) << size;
  }
}

// These and the next: stas00/ml-engineering 744d01e network/README.md.
TEST(CollectiveTime, MeetsPublishedSweeps) {
  const std::vector<double> h200 = {1.44,   2.93,   5.73,   11.74,  23.94,  39.93,  64.53,
                                    107.16, 155.53, 219.89, 275.84, 346.51, 401.93, 436.15,
                                    450.29, 463.58, 469.17, 473.10, 477.45, 482.26};
  const std::vector<double> b200 = {1.20,   2.17,   4.86,   9.54,   18.71,  36.06,  63.09,
                                    76.48,  126.49, 254.96, 325.97, 400.60, 568.38, 646.11,
                                    688.99, 723.34, 734.97, 740.64, 839.07, 845.67};
  // Smaller sizes are printed with one or two digits.
  const std::vector<double> b200_of_4 = {1.33,   2.84,   5.37,   10.38,  18.90,  35.12,
                                         64.43,  91.19,  156.74, 197.94, 229.09, 326.90,
                                         361.99, 372.42, 377.34, 380.39, 381.80};
  EXPECT_LE(mean_error(load_machine("h200"), 8, k32Kib, seconds_of(8, k32Kib, h200)), 0.08);
  EXPECT_LE(mean_error(load_machine("b200"), 8, k32Kib, seconds_of(8, k32Kib, b200)), 0.08);
  EXPECT_LE(mean_error(load_machine("b200+efa-400"), 32, 8 * k32Kib,
                       seconds_of(32, 8 * k32Kib, b200_of_4)),
            0.08);
}

// No constant was fitted on these.
TEST(CollectiveTime, MeetsAnotherSweepOfA100) {
  const std::vector<double> us = {43.83,  46.80,  51.76, 61.38, 80.40, 101.9,  101.4,
                                  101.5,  133.5,  276.6, 424.0, 684.6, 1327.6, 2420.6,
                                  4218.4, 8203.9, 16240, 32136, 64074, 127997};
  EXPECT_LE(mean_error(load_machine("a100-80"), 8, k32Kib, from_us(us)), 0.11);
}

// Points that no constant was fitted on.
TEST(CollectiveTime, MeetsOtherPublishedPoints) {
  const Machine h200 = load_machine("h200");
  const double large = std::exp2(34);
  const auto bus = [&](Collective kind, const Machine& m, double bytes, int size) {
    const double passes = kind == Collective::kAllReduce ? 2.0 : 1.0;
    return 1e-9 * passes * (size - 1) / size * bytes /
           collective_seconds(kind, bytes, strided_layout(size, 1, m), m);
  };
  EXPECT_NEAR(bus(Collective::kAllGather, h200, large, 8), 361.4, 0.05 * 361.4);
  EXPECT_NEAR(bus(Collective::kReduceScatter, h200, large, 8), 362.9, 0.05 * 362.9);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, large / 2, 4), 363.3, 0.05 * 363.3);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, large / 2, 5), 414.2, 0.1 * 414.2);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, large / 2, 6), 435.6, 0.1 * 435.6);
  const Machine b200 = load_machine("b200");
  EXPECT_NEAR(bus(Collective::kAllReduce, b200, large / 2, 4), 673.2, 0.05 * 673.2);
  EXPECT_NEAR(bus(Collective::kAllReduce, b200, large / 2, 6), 778.2, 0.1 * 778.2);
  // 4 nodes of 8 H200 over EFA.
  EXPECT_NEAR(bus(Collective::kAllReduce, load_machine("h200+efa-400"), large / 4, 32), 364.9,
              0.08 * 364.9);
  // A mesh: two members see one link of seven.
  const Machine mi300x = load_machine("mi300x");
  EXPECT_NEAR(bus(Collective::kAllReduce, mi300x, large / 4, 8), 312.9, 0.05 * 312.9);
  EXPECT_NEAR(bus(Collective::kAllReduce, mi300x, large / 4, 2), 47.7, 0.1 * 47.7);
}

std::vector<Machine> some_machines() {
  std::vector<Machine> machines;
  for (const char* name : {"a100-80-cloud", "h100", "gb200", "frontier", "mi300x"}) {
    machines.push_back(load_machine(name));
  }
  return machines;
}

struct Shape {
  int size;
  int stride;
};

constexpr Shape kShapes[] = {{2, 1},  {4, 1},  {8, 1},   {16, 1},  {72, 1},  {128, 1}, {2, 4},
                             {4, 2},  {16, 4}, {64, 8},  {3, 1},   {12, 1},  {13, 1},  {24, 8},
                             {9, 64}, {7, 3},  {100, 5}, {512, 2}, {40, 16}, {1024, 1}};

template <class Check>
void for_all(Check check) {
  for (const Machine& m : some_machines()) {
    for (const Shape shape : kShapes) {
      for (const Collective kind : kAll) {
        for (const double bytes : {1e3, 1e6, 3e7, 1e9}) {
          check(m, strided_layout(shape.size, shape.stride, m), kind, bytes);
        }
      }
    }
  }
}

Machine scaled(const Machine& m, double x) {
  Machine out = m;
  for (Level& level : out.levels) {
    level.bytes_per_s *= x;
    level.pair_bytes_per_s *= x;
    level.ring_end_bytes_per_s *= x;
    level.switch_reduce_bytes_per_s *= x;
    level.latency_s /= x;
    level.base_s /= x;
    level.sqrt_s /= x;
    level.switch_reduce_base_s /= x;
  }
  return out;
}

TEST(CollectiveTime, ScalesAsAllRatesDo) {
  for_all([](const Machine& m, const GroupLayout& group, Collective kind, double bytes) {
    const double seconds = collective_seconds(kind, bytes, group, m);
    EXPECT_NEAR(collective_seconds(kind, bytes, group, scaled(m, 3.0)), seconds / 3.0,
                1e-9 * seconds);
  });
}

TEST(CollectiveTime, IsNeverLongerForABetterFabricOrShorterForMoreBytes) {
  for_all([](const Machine& m, const GroupLayout& group, Collective kind, double bytes) {
    const double seconds = collective_seconds(kind, bytes, group, m);
    EXPECT_GT(seconds, 0.0);
    EXPECT_GE(collective_seconds(kind, 1.01 * bytes, group, m), seconds);
    for (size_t l = 0; l < m.levels.size(); ++l) {
      Machine better = m;
      better.levels[l].bytes_per_s *= 1.3;
      EXPECT_LE(collective_seconds(kind, bytes, group, better), seconds);
      better.levels[l].pair_bytes_per_s *= 1.3;
      EXPECT_LE(collective_seconds(kind, bytes, group, better), seconds);
      better.levels[l].latency_s *= 0.5;
      better.levels[l].base_s *= 0.5;
      EXPECT_LE(collective_seconds(kind, bytes, group, better), seconds);
    }
  });
}

TEST(CollectiveTime, AnAllReduceIsAtMostTwoPasses) {
  for_all([](const Machine& m, const GroupLayout& group, Collective, double bytes) {
    const double pass = collective_seconds(Collective::kAllGather, bytes, group, m);
    const double both = collective_seconds(Collective::kAllReduce, bytes, group, m);
    EXPECT_LE(both, 2.0 * pass * (1.0 + 1e-9));
  });
}

// One ring through all members, a step for each: no tree or switch gathers over nodes.
TEST(CollectiveTime, GathersOverNodesTakeAStepForEachMember) {
  const Machine m = load_machine("h100");
  const double small = 1024.0;
  const auto gather = [&](int size) {
    return collective_seconds(Collective::kAllGather, small, strided_layout(size, 1, m), m);
  };
  const double nvlink_s = m.levels[0].latency_s;
  const double network_s = m.levels[1].latency_s;
  EXPECT_NEAR(gather(2048) - gather(1024), 896 * nvlink_s + 128 * network_s, 1e-6);
}

TEST(CollectiveTime, AnAllReduceOverNodesIsOneRingWhereNoSwitchReduces) {
  const Machine a100 = load_machine("a100-80-cloud");
  const Machine h100 = load_machine("h100");
  const auto two_passes = [](const Machine& m, int size) {
    return 2.0 * collective_seconds(Collective::kAllGather, 1e8, strided_layout(size, 1, m), m);
  };
  EXPECT_DOUBLE_EQ(all_reduce(a100, 1e8, 16), two_passes(a100, 16));
  EXPECT_LT(all_reduce(h100, 1e8, 16), two_passes(h100, 16));
}

// Of a group that lies unevenly: large collectives at the links of the domain with the fewest.
TEST(CollectiveTime, TheDomainWithTheFewestMembersBoundsWhatCrosses) {
  const double bytes = 1e13;
  const auto links = [&](const Machine& m, const GroupLayout& group, Collective kind) {
    const Level& network = m.levels.back();
    const double sent = kind == Collective::kAllReduce  ? 2.0 * (group.size - 1) / group.size
                        : kind == Collective::kAllToAll ? 1.0 - 1.0 * group.fewest[0] / group.size
                                                        : 1.0 * (group.size - 1) / group.size;
    return sent * bytes / collective_seconds(kind, bytes, group, m) /
           (network.bytes_per_s * network.efficiency);
  };
  const Machine h100 = load_machine("h100");
  const GroupLayout of_8_and_4 = strided_layout(12, 1, h100);
  const Machine gb200 = load_machine("gb200");
  const GroupLayout of_8_and_56 = strided_layout(64, 1, gb200, 64);
  ASSERT_EQ(of_8_and_56.fewest, (std::vector<int>{8, 64}));
  for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter}) {
    EXPECT_NEAR(links(h100, of_8_and_4, kind), 4.0, 0.03);
    EXPECT_NEAR(links(gb200, of_8_and_56, kind), 8.0, 0.06);
  }
  EXPECT_NEAR(links(h100, of_8_and_4, Collective::kAllReduce), 4.0, 0.03);
  // A switch reduces in each rack: half of it crosses.
  EXPECT_LT(links(gb200, of_8_and_56, Collective::kAllReduce), 16.0);
  EXPECT_NEAR(links(h100, of_8_and_4, Collective::kAllToAll), 1.0, 0.01);
  EXPECT_NEAR(links(gb200, of_8_and_56, Collective::kAllToAll), 1.0, 0.01);
}

TEST(CollectiveTime, SwitchesReduceInEveryDomainOrInNone) {
  const auto gain = [](int size) {
    Machine m = load_machine("h100");
    const double with = all_reduce(m, 3e7, size);
    m.levels[0].switch_reduce_min_devices = 0;
    return all_reduce(m, 3e7, size) / with;
  };
  EXPECT_GT(gain(8 + 5), 1.01);
  EXPECT_EQ(gain(8 + 4), 1.0) << "four are too few";
}

// On a mesh two members of a domain have one link.
TEST(CollectiveTime, TheDomainWithTheFewestMembersHasTheFewestLinksInside) {
  const Machine m = load_machine("mi300x");
  const GroupLayout group = strided_layout(10, 1, m);
  const double gather = collective_seconds(Collective::kAllGather, 1e13, group, m);
  const double link = m.levels[0].pair_bytes_per_s * m.levels[0].efficiency;
  EXPECT_NEAR(0.9 * 1e13 / gather, link, 0.01 * link);
}

// Groups of the same size over as many nodes, contiguous in each.
TEST(CollectiveTime, AnUnevenGroupIsNeverFasterThanTheEvenOne) {
  for (const Machine& m : some_machines()) {
    const int node = m.levels[m.levels.size() - 2].num_devices;
    const auto layout = [&](const std::vector<int>& members) {
      std::vector<int> ranks;
      for (size_t d = 0; d < members.size(); ++d) {
        for (int i = 0; i < members[d]; ++i) ranks.push_back(static_cast<int>(d) * node + i);
      }
      return layout_of(ranks, m);
    };
    for (int even = 2; even <= node; even += std::max(1, node / 8)) {
      for (int moved = 1; moved < even && even + moved <= node; ++moved) {
        for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter,
                                      Collective::kAllReduce, Collective::kAllToAll}) {
          for (const double bytes : {1e3, 1e6, 3e7, 1e9}) {
            const double best = collective_seconds(kind, bytes, layout({even, even, even}), m);
            const double seconds =
                collective_seconds(kind, bytes, layout({even + moved, even, even - moved}), m);
            EXPECT_GE(seconds, (1.0 - 1e-12) * best)
                << m.name << " " << even << " " << moved << " " << bytes;
          }
        }
      }
    }
  }
}

TEST(CollectiveTime, AGroupOfOneTakesNoTime) {
  const Machine m = load_machine("h100");
  for (const Collective kind : kAll) {
    EXPECT_EQ(collective_seconds(kind, 1e9, strided_layout(1, 1, m), m), 0.0);
  }
}

TEST(Layout, CountsMembersOfADomainByLevel) {
  const Machine m = load_machine("frontier");
  const auto check = [&](const std::vector<int>& ranks, const std::vector<int>& most,
                         const std::vector<int>& fewest, const std::vector<int>& domains) {
    const GroupLayout layout = layout_of(ranks, m);
    EXPECT_EQ(layout.members, most);
    EXPECT_EQ(layout.fewest, fewest);
    EXPECT_EQ(layout.domains, domains);
    EXPECT_EQ(layout.size, std::ssize(ranks));
  };
  check({0, 1}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1});
  check({1, 2}, {1, 2, 2}, {1, 2, 2}, {2, 1, 1});
  check({7, 8}, {1, 1, 2}, {1, 1, 2}, {2, 2, 1});
  check({0, 1, 2, 3, 8, 9}, {2, 4, 6}, {2, 2, 6}, {3, 2, 1});
  check({5, 6, 7, 8, 9, 10}, {2, 3, 6}, {1, 3, 6}, {4, 2, 1});
  check({0}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(strided_layout(16, 8, load_machine("h100")).members, (std::vector<int>{1, 16}));
}

TEST(Layout, OfAStrideIsThatOfItsRanks) {
  for (const Machine& m : some_machines()) {
    for (const Shape shape : kShapes) {
      for (const int first : {0, 1, 5, 64, 71, 128, 1000}) {
        std::vector<int> ranks(shape.size);
        for (int i = 0; i < shape.size; ++i) ranks[i] = first + i * shape.stride;
        EXPECT_EQ(strided_layout(shape.size, shape.stride, m, first), layout_of(ranks, m))
            << m.name << " " << shape.size << " " << shape.stride << " from " << first;
      }
    }
  }
}

TEST(Layout, DoesNotDependOnTheOrderOfRanks) {
  const Machine m = load_machine("frontier");
  EXPECT_EQ(layout_of(std::vector<int>{9, 0, 3, 1, 8, 2}, m),
            layout_of(std::vector<int>{0, 1, 2, 3, 8, 9}, m));
}

// As the software runs them, with gradients in the dtype that it sums.
TEST(Communication, TakesItsLaunchItsCallAndItsWidth) {
  Machine m = load_machine("h100");
  m.device.launch_s = 3e-6;
  m.software.collective_call_s = 5e-6;
  m.software.gradient_bytes = 2.0;
  const GroupLayout group = strided_layout(8, 1, m);
  const auto alone = [&](double bytes) {
    return collective_seconds(Collective::kReduceScatter, bytes, group, m);
  };
  const auto run = [&](bool sums_gradients, double exposed) {
    return communication_seconds({.kind = Collective::kReduceScatter,
                                  .bytes = 1e9,
                                  .sums_gradients = sums_gradients,
                                  .exposed = exposed},
                                 group, m);
  };
  EXPECT_DOUBLE_EQ(run(false, 1.0), alone(1e9) + 8e-6);
  EXPECT_DOUBLE_EQ(run(true, 1.0), alone(5e8) + 8e-6);
  EXPECT_DOUBLE_EQ(run(true, 0.25), 0.25 * alone(5e8) + 8e-6);
}

TEST(Layout, RefusesGroupsThatNoLevelConnects) {
  Machine m = load_machine("h100");
  m.levels.pop_back();
  EXPECT_NO_THROW(strided_layout(8, 1, m));
  EXPECT_THROW(strided_layout(16, 1, m), Error);
  EXPECT_THROW(layout_of(std::vector<int>{0, 8}, m), Error);
  m.levels.clear();
  EXPECT_THROW(strided_layout(2, 1, m), Error);
}

}  // namespace
}  // namespace tokamak::price
