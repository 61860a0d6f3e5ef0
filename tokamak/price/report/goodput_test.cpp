#include "tokamak/price/report/goodput.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

constexpr double kHour = 3600.0;
constexpr double kDay = 86400.0;

// Meta RSC-1 (arXiv 2410.21680): effective training time of 2,000 nodes of 8. The paper counts to
// first order in the failure rate: 0.684 and 0.932.
TEST(Goodput, MeetsRsc1) {
  const FailureModel rsc{.failures_per_s = 2000 * 6.5e-3 / kDay, .restart_s = 300.0};
  EXPECT_NEAR(goodput(rsc, kHour), 0.720, 5e-4);
  EXPECT_NEAR(goodput(rsc, 300.0), 0.934, 5e-4);
  EXPECT_NEAR(goodput(rsc, 300.0), 0.932, 3e-3) << "the paper's";
  const auto mean_hours = [](int gpus) { return 24.0 / (gpus / 8.0 * 6.5e-3); };
  EXPECT_NEAR(mean_hours(16384), 1.80, 5e-3);
  EXPECT_NEAR(mean_hours(131072), 0.23, 5e-3);
}

TEST(Goodput, MeetsWorkedExamples) {
  const FailureModel slow{
      .failures_per_s = 1.0 / (3 * kHour), .stall_s = 60.0, .detect_s = 600.0, .restart_s = 300.0};
  EXPECT_NEAR(best_interval_s(slow) / 60.0, 18.0, 1.0);
  EXPECT_NEAR(goodput(slow, best_interval_s(slow)), 0.826, 5e-4);
  const FailureModel fast{
      .failures_per_s = 1.0 / (3 * kHour), .stall_s = 1.0, .detect_s = 60.0, .restart_s = 120.0};
  EXPECT_NEAR(best_interval_s(fast), 146.0, 1.0);
  EXPECT_NEAR(goodput(fast, best_interval_s(fast)), 0.970, 5e-4);
  const FailureModel peer{
      .failures_per_s = 1.0 / (0.23 * kHour), .stall_s = 0.02, .detect_s = 90.0};
  EXPECT_NEAR(goodput(peer, best_interval_s(peer)), 0.891, 5e-4);
  const FailureModel disk{
      .failures_per_s = 1.0 / (0.23 * kHour), .stall_s = 30.0, .detect_s = 900.0};
  EXPECT_NEAR(goodput(disk, best_interval_s(disk)), 0.254, 5e-4);
}

// Young: sqrt(2 C / rate), where that is short compared with the mean time between failures.
TEST(Goodput, HasItsBestIntervalWhereYoungPutsIt) {
  for (const double stall : {0.5, 5.0, 50.0}) {
    const FailureModel m{.failures_per_s = 1e-6, .stall_s = stall, .restart_s = 100.0};
    const double young = std::sqrt(2.0 * stall / m.failures_per_s);
    EXPECT_NEAR(best_interval_s(m) / young, 1.0, 0.005);
  }
}

TEST(Goodput, IsGreatestAtTheBestInterval) {
  for (const double rate : {1e-7, 1e-5, 1e-3}) {
    for (const double stall : {0.01, 3.0, 60.0}) {
      const FailureModel m{.failures_per_s = rate, .stall_s = stall, .restart_s = 100.0};
      const double best = best_interval_s(m);
      if (best < 2.0) continue;
      EXPECT_GT(goodput(m, best), goodput(m, 0.9 * best));
      EXPECT_GT(goodput(m, best), goodput(m, 1.1 * best));
    }
  }
}

TEST(Goodput, ChecksNoOftenerThanCheckpointsBecomeDurable) {
  const FailureModel m{.failures_per_s = 1e-4, .stall_s = 0.01, .durable_s = 300.0};
  EXPECT_EQ(best_interval_s(m), 300.0);
  EXPECT_EQ(goodput({.stall_s = 2.0}, 98.0), 0.98) << "nothing fails";
}

// Work, stall, failures at exponential times; a failure costs recovery, during which others may
// strike, and the work since the last checkpoint.
double simulated_goodput(const FailureModel& m, double interval_s, int num_intervals) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> until_failure(m.failures_per_s);
  double wall_s = 0.0;
  for (int i = 0; i < num_intervals; ++i) {
    double needed_s = interval_s + m.stall_s;
    for (double failure_s = until_failure(random); failure_s < needed_s;
         failure_s = until_failure(random)) {
      wall_s += failure_s;
      needed_s = m.recovery_s() + interval_s + m.stall_s;
    }
    wall_s += needed_s;
  }
  return interval_s * num_intervals / wall_s;
}

TEST(Goodput, IsWhatASimulationFinds) {
  const FailureModel models[] = {
      {.failures_per_s = 1.0 / (3 * kHour), .stall_s = 60.0, .detect_s = 600.0, .restart_s = 300.0},
      {.failures_per_s = 1.0 / kHour, .stall_s = 5.0, .detect_s = 60.0, .durable_s = 40.0}};
  for (const FailureModel& m : models) {
    for (const double interval : {300.0, 1200.0}) {
      EXPECT_NEAR(simulated_goodput(m, interval, 400'000) / goodput(m, interval), 1.0, 0.02);
    }
  }
}

TEST(Checkpoint, CostsWhatItsBytesTake) {
  Machine m = load_machine("h100");
  set_number(m, "device.to_host_bytes_per_s=50 GB/s");
  set_number(m, "device.from_host_bytes_per_s=50 GB/s");
  set_number(m, "storage.write_bytes_per_s=5 GB/s");
  set_number(m, "storage.read_bytes_per_s=10 GB/s");
  set_number(m, "storage.total_bytes_per_s=100 GB/s");
  set_number(m, "storage.commit_s=1 s");
  set_number(m, "device.save_bytes_per_s=0 B/s");
  const SavedState on_two_nodes{.bytes = 112e9, .num_ranks = 16, .block_ranks = 16};
  const CheckpointCost few = checkpoint_cost(on_two_nodes, 0.1, m);  // 7 GB a rank
  EXPECT_DOUBLE_EQ(few.rank_bytes, 7e9);
  EXPECT_DOUBLE_EQ(few.copy_s, 0.14);
  EXPECT_NEAR(few.stall_s, 0.04, 1e-12);
  EXPECT_DOUBLE_EQ(few.durable_s, 0.14 + 56.0 / 5.0 + 1.0);
  EXPECT_DOUBLE_EQ(few.load_s, 56.0 / 10.0 + 0.14);
  EXPECT_EQ(checkpoint_cost(on_two_nodes, 1.0, m).stall_s, 0.0);
  SavedState at_once = on_two_nodes;
  at_once.in_background = false;
  const CheckpointCost standing = checkpoint_cost(at_once, 1.0, m);
  EXPECT_EQ(standing.stall_s, standing.durable_s);
  EXPECT_NEAR(standing.durable_s, few.durable_s - few.copy_s, 1e-9) << "writing takes longer";
  // 512 nodes share the file system: 112 GB at 100 GB/s.
  const CheckpointCost many =
      checkpoint_cost({.bytes = 112e9, .num_ranks = 4096, .block_ranks = 4096}, 1.0, m);
  EXPECT_NEAR(many.durable_s, many.copy_s + 1.12 + 1.0, 1e-9);
}

// The first replica writes, all load.
TEST(Checkpoint, IsWrittenByOneReplica) {
  Machine m = load_machine("h100");
  set_number(m, "device.to_host_bytes_per_s=50 GB/s");
  set_number(m, "device.from_host_bytes_per_s=50 GB/s");
  set_number(m, "storage.write_bytes_per_s=5 GB/s");
  set_number(m, "storage.read_bytes_per_s=10 GB/s");
  set_number(m, "storage.total_bytes_per_s=40 GB/s");
  set_number(m, "storage.commit_s=0 s");
  set_number(m, "device.save_bytes_per_s=0 B/s");

  struct Case {
    int num_ranks, replicas, block;
    double rank_gb, writer_gb, written_at, node_gb, read_at;  // of the fullest node, at its GB/s
  };

  for (const Case& c : {Case{8, 8, 1, 96, 96, 5, 768, 10},  // all in one node, which has one writer
                        Case{64, 64, 1, 96, 96, 5, 768, 5},  // eight nodes read 40 GB/s together
                        Case{64, 2, 32, 3, 24, 5, 24, 5},    // four nodes write all that they hold
                        Case{64, 4, 4, 6, 24, 5, 48, 5},     // four stages of two nodes
                        Case{16, 2, 2, 12, 48, 5, 96, 10},   // four stages of half a node
                        Case{256, 2, 8, 0.75, 6, 2.5, 6, 1.25}}) {  // 16 nodes write
    SCOPED_TRACE(testing::Message() << c.num_ranks << " ranks, " << c.replicas << " replicas");
    const CheckpointCost cost = checkpoint_cost({.bytes = 96e9,
                                                 .num_ranks = c.num_ranks,
                                                 .num_replicas = c.replicas,
                                                 .block_ranks = c.block},
                                                0.0, m);
    EXPECT_DOUBLE_EQ(cost.rank_bytes, c.rank_gb * 1e9);
    EXPECT_NEAR(cost.durable_s, cost.copy_s + c.writer_gb / c.written_at, 1e-9);
    EXPECT_NEAR(cost.load_s, cost.copy_s + c.node_gb / c.read_at, 1e-9);
  }
}

// docs/log/2026-11.md: 6.62 GB on one H100 in steps of 0.168 s stood 0.0056 to 0.0060 s where the
// device had room for a copy, and 0.142 s before that was tried; 7.3 GB on one H200 in steps of
// 0.25 s stood 0.14 to 0.15 s.
TEST(Checkpoint, StallsAsMeasured) {
  const auto stall_s = [](const char* machine, double bytes, double hidden_s, double free_bytes) {
    return checkpoint_cost({.bytes = bytes, .free_bytes = free_bytes}, hidden_s,
                           load_machine(machine))
        .stall_s;
  };
  EXPECT_NEAR(stall_s("h100", 6.62e9, 0.155, 20e9), 0.0058, 0.0003);
  EXPECT_NEAR(stall_s("h100", 6.62e9, 0.155, 6.62e9), 0.142, 0.02);
  EXPECT_NEAR(stall_s("h200", 7.3e9, 0.237, 0.0), 0.145, 0.02);
  EXPECT_EQ(stall_s("h100", 6.62e9, 2.0, 0.0), 0.0) << "the copy is hidden";
  Machine other = load_machine("gb200");
  EXPECT_DOUBLE_EQ(checkpoint_cost({.bytes = 7.04e9, .free_bytes = 50e9}, 0.1, other).stall_s,
                   2.0 * 7.04e9 / (8e12 * 0.88));
}

TEST(Checkpoint, GivesAFailureModel) {
  Machine m = load_machine("h100");
  set_number(m, "failures.per_device_s=1 1/year");
  const FailureModel f = failure_model(365, {.stall_s = 2.0, .durable_s = 9.0, .load_s = 30.0}, m);
  EXPECT_DOUBLE_EQ(f.failures_per_s, 1.0 / kDay);
  EXPECT_DOUBLE_EQ(f.restart_s, m.failures.restart_s + 30.0);
  EXPECT_EQ(f.stall_s, 2.0);
  EXPECT_EQ(f.durable_s, 9.0);
}

TEST(Spares, CoverNinetyNineInAHundred) {
  EXPECT_EQ(num_spares(1000, 0.0), 0);
  EXPECT_EQ(num_spares(1, 0.5), 1);
  EXPECT_EQ(num_spares(3, 1.0), 3);
  // P[Binomial(2, 0.1) <= 1] = 0.99 exactly; of 4: 0.9477 up to 1, 0.9963 up to 2.
  EXPECT_EQ(num_spares(4, 0.1), 2);
  const int many = num_spares(10'000, 0.01);  // mean 100, deviation 9.95: 100 + 2.33 x 9.95
  EXPECT_NEAR(many, 123, 2);
  EXPECT_THROW(num_spares(10, 1.5), Error);
}

}  // namespace
}  // namespace tokamak::price
