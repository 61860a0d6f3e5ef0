#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "tokamak/comm/flight.h"
#include "tokamak/comm/reduce.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using namespace std::chrono_literals;

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Rank and index give each element a value of its own that sums inexactly.
template <class T>
std::vector<T> elements_of(int rank, int64_t count) {
  std::vector<T> x(count);
  for (int64_t i = 0; i < count; ++i) {
    x[i] = T(static_cast<float>(rank * 31 + i % 1009) * 0.3F + 1.0F);
  }
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
std::vector<T> sum_in_order(int num_ranks, int64_t count) {
  std::vector<float> sum(count);
  for (int r = 0; r < num_ranks; ++r) {
    const auto x = elements_of<T>(r, count);
    for (size_t i = 0; i < x.size(); ++i) {
      sum[i] = r == 0 ? static_cast<float>(x[i]) : sum[i] + static_cast<float>(x[i]);
    }
  }
  std::vector<T> rounded;
  rounded.reserve(sum.size());
  for (const float x : sum) rounded.push_back(T(x));
  return rounded;
}

/// What the first failing rank says; "" where none fails.
std::string failure_of(int num_ranks, const std::function<void(World&)>& body,
                       std::chrono::milliseconds timeout = 60s) {
  try {
    run_ranks(num_ranks, body, {.timeout = timeout});
  } catch (const SystemError& error) {
    return error.what();
  }
  return "";
}

template <class T>
class SumTest : public testing::Test {};

using SumTypes = testing::Types<float, BF16>;
TYPED_TEST_SUITE(SumTest, SumTypes);

TYPED_TEST(SumTest, AllReduceAddsInRankOrder) {
  for (const int num_ranks : {1, 2, 3, 7}) {
    for (const int64_t count : {0, 1, 5, 1000, 5001, 100'003}) {
      const auto want = sum_in_order<TypeParam>(num_ranks, count);
      run_ranks(num_ranks, [&](World& world) {
        const auto comm = world.make_group("all", all_ranks(world));
        const auto in = elements_of<TypeParam>(world.rank(), count);
        auto out = in;
        comm->all_reduce(out.data(), out.data(), count, kDTypeOf<TypeParam>, ReduceOp::kSum,
                         nullptr);
        EXPECT_TRUE(same_bits(out, want)) << num_ranks << " ranks, in place, " << count;
        std::vector<TypeParam> apart(in.size());
        comm->all_reduce(in.data(), apart.data(), count, kDTypeOf<TypeParam>, ReduceOp::kSum,
                         nullptr);
        EXPECT_TRUE(same_bits(apart, want)) << num_ranks << " ranks, " << count;
      });
    }
  }
}

TYPED_TEST(SumTest, ReduceScatterIsASliceOfAllReduce) {
  for (const int num_ranks : {2, 3, 5}) {
    for (const int64_t count : {1, 700, 40'001}) {
      const auto want = sum_in_order<TypeParam>(num_ranks, count * num_ranks);
      run_ranks(num_ranks, [&](World& world) {
        const auto comm = world.make_group("all", all_ranks(world));
        auto x = elements_of<TypeParam>(world.rank(), count * num_ranks);
        const auto first = want.begin() + world.rank() * count;
        TypeParam* const mine = x.data() + world.rank() * count;
        comm->reduce_scatter(x.data(), mine, count, kDTypeOf<TypeParam>, nullptr);
        EXPECT_TRUE(same_bits(std::vector<TypeParam>(mine, mine + count), {first, first + count}));
      });
    }
  }
}

// Longer than the room in which other members' elements are staged.
TEST(Sum, ReduceScatterWorksInChunks) {
  constexpr int64_t kCount = 1'500'000;
  const auto want = sum_in_order<float>(2, 2 * kCount);
  run_ranks(2, [&](World& world) {
    const auto comm = world.make_group("all", all_ranks(world));
    const auto x = elements_of<float>(world.rank(), 2 * kCount);
    std::vector<float> out(kCount);
    comm->reduce_scatter(x.data(), out.data(), kCount, DType::kF32, nullptr);
    const auto first = want.begin() + world.rank() * kCount;
    EXPECT_TRUE(same_bits(out, {first, first + kCount}));
  });
}

// Of one slice at a time, of several in one message, and of more than staging holds.
TEST(Sum, SlicesAreCallsOfTheirOwn) {
  constexpr int kRanks = 3;
  for (const auto& [slices, count] : {std::pair<int64_t, int64_t>{1, 700}, {5, 3}, {40, 20'001}}) {
    const auto want = sum_in_order<float>(kRanks, slices * kRanks * count);
    run_ranks(kRanks, [&, slices = slices, count = count](World& world) {
      const auto comm = world.make_group("all", all_ranks(world));
      const auto x = elements_of<float>(world.rank(), slices * kRanks * count);
      std::vector<float> mine(slices * count);
      comm->reduce_scatter_slices(x.data(), mine.data(), slices, count, DType::kF32, nullptr);
      for (int64_t s = 0; s < slices; ++s) {
        const auto got = mine.begin() + s * count;
        const auto first = want.begin() + (s * kRanks + world.rank()) * count;
        EXPECT_TRUE(same_bits(std::vector<float>(got, got + count), {first, first + count}));
      }
      std::vector<float> all(x.size());
      comm->all_gather_slices(mine.data(), all.data(), slices, count, DType::kF32, nullptr);
      EXPECT_TRUE(same_bits(all, want)) << slices << " of " << count;
      EXPECT_EQ(comm->traffic().all_gather.bytes, (kRanks - 1) * slices * count * 4);
      EXPECT_EQ(comm->traffic().reduce_scatter.bytes, (kRanks - 1) * slices * count * 4);
      EXPECT_EQ(comm->traffic().all_gather.calls + comm->traffic().reduce_scatter.calls, 2);
    });
  }
}

TEST(Sum, SixteenBitSumsRoundOnce) {
  // 256 + 1 + 1 is 258 in fp32, but 256 if each sum is rounded to 8 bits.
  const BF16 a(256.0F);
  const BF16 b(1.0F);
  const std::byte* const parts[] = {reinterpret_cast<const std::byte*>(&a),
                                    reinterpret_cast<const std::byte*>(&b),
                                    reinterpret_cast<const std::byte*>(&b)};
  BF16 sum;
  reduce_in_order(parts, reinterpret_cast<std::byte*>(&sum), 1, DType::kBF16, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(sum), 258.0F);
}

TEST(Sum, OtherTypesAddInTheirOwn) {
  run_ranks(3, [](World& world) {
    const auto comm = world.make_group("all", all_ranks(world));
    double x = 1.0 + world.rank() * 0x1p-50;
    comm->all_reduce(&x, &x, 1, DType::kF64, ReduceOp::kSum, nullptr);
    EXPECT_EQ(x, 3.0 + 3 * 0x1p-50);
    int64_t n = (int64_t{1} << 60) + world.rank();
    comm->all_reduce(&n, &n, 1, DType::kI64, ReduceOp::kSum, nullptr);
    EXPECT_EQ(n, 3 * (int64_t{1} << 60) + 3);
  });
}

TEST(Sum, MaximumKeepsNan) {
  for (int bad = -1; bad < 3; ++bad) {
    run_ranks(3, [&](World& world) {
      const auto comm = world.make_group("all", all_ranks(world));
      float x = world.rank() == bad ? std::numeric_limits<float>::quiet_NaN()
                                    : -1.0F - static_cast<float>(world.rank());
      comm->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kMax, nullptr);
      if (bad < 0) {
        EXPECT_EQ(x, -1.0F);
      } else {
        EXPECT_TRUE(std::isnan(x)) << bad;
      }
    });
  }
}

TEST(ThreadWorld, MovesBytes) {
  for (const int num_ranks : {1, 2, 5}) {
    for (const int64_t count : {0, 3, 4096, 20'000}) {
      run_ranks(num_ranks, [&](World& world) {
        const auto comm = world.make_group("all", all_ranks(world));
        const int rank = world.rank();
        const auto mine = elements_of<float>(rank, count);
        std::vector<float> all(count * num_ranks);
        std::copy(mine.begin(), mine.end(), all.begin() + rank * count);
        comm->all_gather(all.data() + rank * count, all.data(), count, DType::kF32, nullptr);
        std::vector<float> want;
        for (int r = 0; r < num_ranks; ++r) {
          const auto theirs = elements_of<float>(r, count);
          want.insert(want.end(), theirs.begin(), theirs.end());
        }
        EXPECT_EQ(all, want);

        const auto rows = elements_of<float>(100 * rank, count * num_ranks);
        std::vector<float> columns(rows.size());
        comm->all_to_all(rows.data(), columns.data(), count, DType::kF32, nullptr);
        for (int r = 0; r < num_ranks; ++r) {
          const auto theirs = elements_of<float>(100 * r, count * num_ranks);
          EXPECT_TRUE(std::equal(columns.begin() + r * count, columns.begin() + (r + 1) * count,
                                 theirs.begin() + rank * count));
        }

        for (int root = 0; root < num_ranks; ++root) {
          auto x = elements_of<float>(rank, count);
          comm->broadcast(x.data(), count, DType::kF32, root, nullptr);
          EXPECT_EQ(x, elements_of<float>(root, count));
        }

        std::vector<float> from_below(mine.size());
        comm->send_recv(mine.data(), (rank + 1) % num_ranks, from_below.data(),
                        (rank + num_ranks - 1) % num_ranks, count, DType::kF32, nullptr);
        EXPECT_EQ(from_below, elements_of<float>((rank + num_ranks - 1) % num_ranks, count));
      });
    }
  }
}

TEST(ThreadWorld, SendsAlongALine) {
  run_ranks(4, [](World& world) {
    const auto comm = world.make_group("line", all_ranks(world));
    const int rank = world.rank();
    int64_t x = 7;
    if (rank > 0) comm->send_recv(nullptr, -1, &x, rank - 1, 1, DType::kI64, nullptr);
    EXPECT_EQ(x, 7 + rank);
    ++x;
    if (rank < 3) comm->send_recv(&x, rank + 1, nullptr, -1, 1, DType::kI64, nullptr);
    comm->all_reduce(&x, &x, 1, DType::kI64, ReduceOp::kSum, nullptr);
    EXPECT_EQ(x, 8 + 9 + 10 + 11);
  });
}

TEST(ThreadWorld, GroupsHaveTheirOwnOrder) {
  run_ranks(4, [](World& world) {
    const int half = world.rank() / 2;
    const std::vector<int> pair{2 * half + 1, 2 * half};
    const auto comm = world.make_group("pair", pair);
    EXPECT_EQ(comm->size(), 2);
    EXPECT_EQ(comm->rank(), 1 - world.rank() % 2);
    const int32_t mine = world.rank();
    std::vector<int32_t> both(2);
    comm->all_gather(&mine, both.data(), 1, DType::kI32, nullptr);
    EXPECT_EQ(both, (std::vector<int32_t>{2 * half + 1, 2 * half}));
  });
}

TEST(ThreadWorld, GroupsOfTheSameRanksServeThreadsAtOnce) {
  run_ranks(3, [](World& world) {
    std::vector<std::unique_ptr<Communicator>> comms;
    comms.reserve(4);
    for (int i = 0; i < 4; ++i) comms.push_back(world.make_group("all", all_ranks(world)));
    std::vector<std::jthread> streams;
    streams.reserve(4);
    for (int i = 0; i < 4; ++i) {
      streams.emplace_back([&, i] {
        for (int64_t round = 0; round < 50; ++round) {
          std::vector<int64_t> x(1 + i * 400, round * (i + 1));
          comms[i]->all_reduce(x.data(), x.data(), static_cast<int64_t>(x.size()), DType::kI64,
                               ReduceOp::kSum, nullptr);
          EXPECT_EQ(x.back(), 3 * round * (i + 1));
        }
      });
    }
  });
}

TEST(ThreadWorld, ControlPlaneCarriesText) {
  run_ranks(3, [](World& world) {
    const std::string mine(static_cast<size_t>(world.rank() * 5000), 'a');
    const auto texts = world.all_gather_text(mine);
    ASSERT_EQ(texts.size(), 3U);
    for (size_t r = 0; r < 3; ++r) EXPECT_EQ(texts[r], std::string(r * 5000, 'a'));
    EXPECT_EQ(world.broadcast_text("from " + std::to_string(world.rank()), 1), "from 1");
    world.barrier();
  });
  const auto single = make_single_world();
  EXPECT_EQ(single->all_gather_text("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(single->broadcast_text("x", 0), "x");
}

TEST(ThreadWorld, CountsTrafficByTheClosedForms) {
  run_ranks(4, [](World& world) {
    const auto comm = world.make_group("all", all_ranks(world));
    const int rank = world.rank();
    std::vector<float> x(4 * 1000);
    std::vector<float> y(4 * 1000);
    comm->all_gather(x.data(), y.data(), 1000, DType::kF32, nullptr);
    comm->reduce_scatter(x.data(), y.data(), 1000, DType::kF32, nullptr);
    comm->all_reduce(x.data(), y.data(), 4000, DType::kBF16, ReduceOp::kSum, nullptr);
    comm->all_to_all(x.data(), y.data(), 1000, DType::kF32, nullptr);
    comm->broadcast(x.data(), 1000, DType::kF32, 2, nullptr);
    comm->send_recv(x.data(), rank < 3 ? rank + 1 : -1, y.data(), rank - 1, 1000, DType::kF32,
                    nullptr);
    const auto& traffic = comm->traffic();
    EXPECT_EQ(traffic.all_gather.bytes, 3 * 4000);
    EXPECT_EQ(traffic.reduce_scatter.bytes, 3 * 4000);
    EXPECT_EQ(traffic.all_reduce.bytes, 2 * 3 * 8000 / 4);
    EXPECT_EQ(traffic.all_to_all.bytes, 3 * 4000);
    EXPECT_EQ(traffic.broadcast.bytes, rank == 2 ? 4000 : 0);
    EXPECT_EQ(traffic.send.bytes, rank < 3 ? 4000 : 0);
    EXPECT_EQ(traffic.all_gather.calls + traffic.reduce_scatter.calls + traffic.all_reduce.calls +
                  traffic.all_to_all.calls + traffic.broadcast.calls + traffic.send.calls,
              6);
  });
}

TEST(ThreadWorld, SaysWhoEntersAnotherCall) {
  const auto differ = [](const std::function<void(Communicator&, float*)>& odd) {
    return failure_of(3, [&](World& world) {
      const auto comm = world.make_group("tp", all_ranks(world));
      std::vector<float> x(64);
      std::vector<float> y(64);
      world.barrier();
      if (world.rank() == 1) {
        odd(*comm, x.data());
      } else {
        comm->all_reduce(x.data(), y.data(), 16, DType::kF32, ReduceOp::kSum, nullptr);
      }
    });
  };
  const std::vector<std::pair<std::string, std::function<void(Communicator&, float*)>>> cases{
      {"reduce_scatter 1 of 8 float32",
       [](Communicator& comm, float* x) {
         comm.reduce_scatter(x, x + 8, 8, DType::kF32, nullptr);
       }},
      {"all_reduce 1 of 15 float32 (sum)",
       [](Communicator& comm, float* x) {
         comm.all_reduce(x, x, 15, DType::kF32, ReduceOp::kSum, nullptr);
       }},
      {"all_reduce 1 of 16 bfloat16 (sum)",
       [](Communicator& comm, float* x) {
         comm.all_reduce(x, x, 16, DType::kBF16, ReduceOp::kSum, nullptr);
       }},
      {"all_reduce 1 of 16 float32 (max)",
       [](Communicator& comm, float* x) {
         comm.all_reduce(x, x, 16, DType::kF32, ReduceOp::kMax, nullptr);
       }},
      {"send_recv 1 of 16 float32", [](Communicator& comm, float* x) {
         comm.send_recv(x, 2, nullptr, -1, 16, DType::kF32, nullptr);
       }}};
  for (const auto& [what, odd] : cases) {
    const std::string text = differ(odd);
    EXPECT_NE(text.find("ranks differ in group \"tp\""), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 entered " + what), std::string::npos) << text;
    EXPECT_NE(text.find("entered all_reduce 1 of 16 float32 (sum)"), std::string::npos) << text;
  }
}

TEST(ThreadWorld, ThrowingRankWakesTheOthers) {
  std::mutex mutex;
  std::vector<std::string> woken;
  EXPECT_THROW(run_ranks(4,
                         [&](World& world) {
                           if (world.rank() == 2) fail("bad key");
                           try {
                             world.barrier();
                           } catch (const SystemError& error) {
                             const std::lock_guard lock(mutex);
                             woken.emplace_back(error.what());
                             throw;
                           }
                         }),
               Error);
  ASSERT_EQ(woken.size(), 3U);
  for (const std::string& text : woken) {
    EXPECT_NE(text.find("rank 2 failed: bad key"), std::string::npos) << text;
  }
}

TEST(ThreadWorld, AbortEndsAllRanks) {
  const std::string text = failure_of(3, [](World& world) {
    if (world.rank() == 1) world.abort(3, "loss is NaN");
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: exit 3: loss is NaN");
}

TEST(ThreadWorld, ReturningRankWakesThoseThatWaitForIt) {
  const std::string text = failure_of(3, [](World& world) {
    const auto comm = world.make_group("cp", all_ranks(world));
    std::vector<float> x(3000);
    comm->broadcast(x.data(), 3000, DType::kF32, 0, nullptr);
    if (world.rank() != 1) comm->broadcast(x.data(), 3000, DType::kF32, 0, nullptr);
  });
  EXPECT_NE(text.find("waits for rank 1 in group \"cp\", which has returned"), std::string::npos)
      << text;
}

TEST(ThreadWorld, TimeOutTellsTheLastCollectives) {
  const std::string text = failure_of(
      2,
      [](World& world) {
        const std::vector<int> both{0, 1};
        const auto dp = world.make_group("dp", both);
        const auto tp = world.make_group("tp", both);
        float x = 0;
        dp->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, nullptr);
        (world.rank() == 0 ? dp : tp)->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, nullptr);
      },
      100ms);
  EXPECT_NE(text.find("for 0.1 s"), std::string::npos) << text;
  EXPECT_NE(text.find("in all_reduce 2 of \"dp\" (1 float32)"), std::string::npos) << text;
  EXPECT_NE(text.find("in all_reduce 1 of \"tp\" (1 float32)"), std::string::npos) << text;
}

TEST(Flight, CallsThatRunOnAreToldByTheLastOneEntered) {
  const auto page = std::make_unique<FlightPage>();
  FlightLane* dp = page->add_lane("dp");
  for (uint64_t call = 1; call <= 3; ++call) {
    dp->enter(call == 3 ? CollectiveKind::kAllReduce : CollectiveKind::kAllGather, DType::kBF16, 8,
              call);
  }
  dp->finish(1);
  EXPECT_EQ(describe(*page), "rank 0 (): in all_reduce 3 of \"dp\" (8 bfloat16), 1 ended");
  dp->finish(2);
  EXPECT_EQ(describe(*page), "rank 0 (): left all_reduce 3 of \"dp\" (8 bfloat16)");
}

TEST(ThreadWorld, GroupsMadeInAnotherOrderAreFound) {
  const std::string text = failure_of(2, [](World& world) {
    const std::vector<int> both{0, 1};
    const auto comm = world.make_group(world.rank() == 0 ? "tp" : "cp", both);
    world.barrier();
  });
  EXPECT_NE(text.find("makes group \""), std::string::npos) << text;
}

}  // namespace
}  // namespace tokamak
