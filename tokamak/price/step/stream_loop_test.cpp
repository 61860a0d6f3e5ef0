#include "tokamak/price/step/stream_loop.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

Work compute(double seconds, int stream = 0) {
  return {.seconds = seconds, .category = Category::kGemm, .is_shared = true, .stream = stream};
}

Work communicate(double seconds, int stream = 1) {
  return {
      .seconds = seconds, .category = Category::kExposedComm, .is_shared = true, .stream = stream};
}

RankTimes run_one(const RankWorks& works, const Slowdown& slowdown = {}) {
  return run_streams({&works, 1}, {}, slowdown)[0];
}

double of(const RankTimes& times, Category category) {
  return times.by_category[category];
}

TEST(StreamLoop, StreamsRunInOrderAndWait) {
  RankWorks works;
  const int first = works.add(compute(2.0), {});
  const int sent = works.add(communicate(3.0), {{first}});
  works.add(compute(1.0), {});
  const int last = works.add(compute(4.0), {{sent}});
  const RankTimes times = run_one(works);
  EXPECT_DOUBLE_EQ(times.begin_s[sent], 2.0);
  EXPECT_DOUBLE_EQ(times.begin_s[last], 5.0);
  EXPECT_DOUBLE_EQ(times.last_s, 9.0);
  EXPECT_DOUBLE_EQ(of(times, Category::kGemm), 7.0);
  EXPECT_DOUBLE_EQ(of(times, Category::kExposedComm), 2.0);
  EXPECT_DOUBLE_EQ(times.hidden_comm_s, 1.0);
}

TEST(StreamLoop, CollectivesAndComputeSlowEachOther) {
  RankWorks works;
  works.add(compute(10.0), {});
  works.add(communicate(4.0), {});
  const RankTimes times = run_one(works, {.compute = 1.5, .communication = 2.0});
  EXPECT_DOUBLE_EQ(times.end_s[1], 8.0);
  EXPECT_NEAR(times.end_s[0], 8.0 + (10.0 - 8.0 / 1.5), 1e-12);
  EXPECT_DOUBLE_EQ(times.hidden_comm_s, 8.0);
  EXPECT_DOUBLE_EQ(of(times, Category::kExposedComm), 0.0);
}

TEST(StreamLoop, CopyEnginesSlowComputeByAFactorOfTheirOwn) {
  const Slowdown slowdown{.compute = 1.5, .compute_beside_copy_engine = 1.25};
  RankWorks works;
  works.add(compute(10.0), {});
  Work gather = communicate(4.0);
  gather.is_by_copy_engine = true;
  works.add(gather, {});
  EXPECT_NEAR(run_one(works, slowdown).end_s[0], 4.0 + (10.0 - 4.0 / 1.25), 1e-12);
  // A concurrent kernel slows as it does alone.
  Work reduction = communicate(4.0, 2);
  reduction.link = 1;
  works.add(reduction, {});
  EXPECT_NEAR(run_one(works, slowdown).end_s[0], 4.0 + (10.0 - 4.0 / 1.5), 1e-12);
}

TEST(StreamLoop, WhatEndsTogetherEndsOnce) {
  RankWorks works;
  std::vector<int> all(4);
  for (int s = 0; s < 4; ++s) all[s] = works.add(compute(0.1, s), {});
  works.add({.stream = 0}, all);
  EXPECT_DOUBLE_EQ(run_one(works).last_s, 0.1);
}

// Sends meet receives; who comes first waits.
TEST(StreamLoop, RanksMeet) {
  std::vector<RankWorks> ranks(2);
  const int made = ranks[0].add(compute(5.0), {});
  Work message = communicate(2.0);
  message.is_shared = false;
  message.meeting = 0;
  ranks[0].add(message, {{made}});
  const int got = ranks[1].add(message, {});
  ranks[1].add(compute(1.0), {{got}});
  const std::vector<int> meetings{2};
  const auto times = run_streams(ranks, meetings, {});
  EXPECT_DOUBLE_EQ(times[1].begin_s[0], 5.0);
  EXPECT_DOUBLE_EQ(times[1].last_s, 8.0);
  EXPECT_DOUBLE_EQ(times[0].last_s, 7.0);
  EXPECT_DOUBLE_EQ(of(times[1], Category::kExposedComm), 2.0) << "waiting is not communication";
}

// A message's kernel holds multiprocessors from when it waits.
TEST(StreamLoop, MessagesSlowComputeFromTheirArrivalOn) {
  std::vector<RankWorks> ranks(2);
  const int made = ranks[0].add(compute(5.0), {});
  Work message = communicate(2.0);
  message.is_shared = false;
  message.holds = true;
  message.meeting = 0;
  ranks[0].add(message, {{made}});
  ranks[1].add(message, {});
  Work item = compute(10.0);
  item.is_shared = false;
  item.held_factor = 1.4;
  ranks[1].add(item, {});
  const std::vector<int> meetings{2};
  const auto times = run_streams(ranks, meetings, {});
  EXPECT_DOUBLE_EQ(times[0].last_s, 7.0);
  EXPECT_DOUBLE_EQ(times[1].last_s, 7.0 + (10.0 - 7.0 / 1.4));
}

// Two gathers over one link end when one after the other would; over two links, when the longer
// does.
TEST(StreamLoop, CollectivesShareALink) {
  const auto last_s = [](int link) {
    RankWorks rank;
    rank.add(communicate(4.0), {});
    Work other = communicate(6.0, 2);
    other.link = link;
    rank.add(other, {});
    return run_one(rank).last_s;
  };
  EXPECT_DOUBLE_EQ(last_s(0), 10.0);
  EXPECT_DOUBLE_EQ(last_s(1), 6.0);
}

TEST(StreamLoop, ALinkIsSharedWhileBothRun) {
  RankWorks rank;
  const int made = rank.add(compute(2.0), {});
  rank.add(communicate(4.0), {});
  rank.add(communicate(1.0, 2), {{made}});
  const RankTimes times = run_one(rank);
  EXPECT_DOUBLE_EQ(times.end_s[2], 4.0);
  EXPECT_DOUBLE_EQ(times.end_s[1], 5.0);
}

TEST(StreamLoop, FindsDeadlocks) {
  std::vector<RankWorks> ranks(2);
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < 2; ++k) {
      Work message = communicate(1.0);
      message.meeting = k == r ? 0 : 1;
      ranks[r].add(message, {});
    }
  }
  const std::vector<int> meetings{2, 2};
  EXPECT_THROW(run_streams(ranks, meetings, {}), Bug);
}

TEST(StreamLoop, PointsInTimeTakeNone) {
  std::vector<RankWorks> ranks(2);
  for (RankWorks& works : ranks) {
    int last = works.add({.stream = 0}, {});
    for (int k = 0; k < 3; ++k) {
      last = works.add({.category = Category::kExposedComm, .stream = 1, .meeting = k}, {{last}});
      last = works.add({.stream = 0}, {{last}});
    }
    works.add(compute(1.0), {});
  }
  const std::vector<int> meetings{2, 2, 2};
  for (const RankTimes& times : run_streams(ranks, meetings, {}))
    EXPECT_DOUBLE_EQ(times.last_s, 1.0);
}

}  // namespace
}  // namespace tokamak::price
