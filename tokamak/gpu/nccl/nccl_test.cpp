// NCCL's groups over this host's GPUs, a thread each, against sums and moves made on the host.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/core/error.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/nccl/nccl_world.h"

namespace tokamak::gpu {
namespace {

using Floats = std::vector<float>;

// Whole numbers, so that sums are exact in every order.
float element(int rank, int64_t i) {
  return static_cast<float>((rank * 31 + i * 7) % 101);
}

Floats elements(int rank, int64_t count) {
  Floats x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[i] = element(rank, i);
  return x;
}

// Two buffers of a rank's GPU.
class Bench {
 public:
  explicit Bench(Backend& backend, int64_t count)
      : backend_(backend),
        in_(backend.allocate(bytes(count))),
        out_(backend.allocate(bytes(count))) {}

  void* in() const { return in_->data(); }

  void* out() const { return out_->data(); }

  CommStream stream() const { return backend_.streams()->stream(0); }

  void fill(const Floats& x) {
    backend_.upload(in_->data(), reinterpret_cast<const std::byte*>(x.data()),
                    bytes(static_cast<int64_t>(x.size())));
  }

  Floats result(int64_t count) { return fetch(*out_, count); }

  Floats in_result(int64_t count) { return fetch(*in_, count); }

 private:
  static int64_t bytes(int64_t count) { return count * int64_t{sizeof(float)}; }

  Floats fetch(const Allocation& from, int64_t count) {
    Floats x(static_cast<size_t>(count));
    backend_.download(reinterpret_cast<std::byte*>(x.data()), from.data(), bytes(count));
    return x;
  }

  Backend& backend_;
  std::unique_ptr<Allocation> in_;
  std::unique_ptr<Allocation> out_;
};

std::vector<int> everyone(int n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_gathers(Communicator& comm, Bench& x, int64_t count) {
  const int n = comm.size();
  x.fill(elements(comm.rank(), count));
  comm.all_gather(x.in(), x.out(), count, DType::kF32, x.stream());
  const Floats all = x.result(n * count);
  for (int64_t i = 0; i < n * count; ++i)
    ASSERT_EQ(all[i], element(static_cast<int>(i / count), i % count)) << i;

  Floats rows(static_cast<size_t>(n * count));
  const Floats mine = elements(comm.rank(), count);
  std::copy(mine.begin(), mine.end(), rows.begin() + comm.rank() * count);
  x.fill(rows);
  float* const base = static_cast<float*>(x.in());
  comm.all_gather(base + comm.rank() * count, base, count, DType::kF32, x.stream());
  EXPECT_EQ(x.in_result(n * count), all) << "in place";

  x.fill(elements(comm.rank(), n * count));
  comm.all_to_all(x.in(), x.out(), count, DType::kF32, x.stream());
  const Floats dealt = x.result(n * count);
  for (int64_t i = 0; i < n * count; ++i)
    ASSERT_EQ(dealt[i], element(static_cast<int>(i / count), comm.rank() * count + i % count)) << i;
}

void check_sums(Communicator& comm, Bench& x, int64_t count) {
  const int n = comm.size();
  const auto sum_at = [&](int64_t i) {
    float sum = 0.0F;
    for (int r = 0; r < n; ++r) sum += element(r, i);
    return sum;
  };
  x.fill(elements(comm.rank(), n * count));
  comm.reduce_scatter(x.in(), x.out(), count, DType::kF32, x.stream());
  const Floats piece = x.result(count);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(piece[i], sum_at(comm.rank() * count + i)) << i;
  comm.all_reduce(x.in(), x.out(), count, DType::kF32, ReduceOp::kSum, x.stream());
  const Floats sum = x.result(count);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], sum_at(i)) << i;
  comm.all_reduce(x.in(), x.in(), count, DType::kF32, ReduceOp::kMax, x.stream());
  const Floats most = x.in_result(count);
  for (int64_t i = 0; i < count; ++i) {
    float want = 0.0F;
    for (int r = 0; r < n; ++r) want = std::max(want, element(r, i));
    ASSERT_EQ(most[i], want) << i;
  }
}

void check_slices(Communicator& comm, Bench& x, int64_t slices, int64_t count) {
  const int n = comm.size();
  x.fill(elements(comm.rank(), slices * count));
  comm.all_gather_slices(x.in(), x.out(), slices, count, DType::kF32, x.stream());
  const Floats all = x.result(slices * n * count);
  for (int64_t i = 0; i < slices * n * count; ++i) {
    const int64_t slice = i / (n * count);
    const auto member = static_cast<int>(i / count % n);
    ASSERT_EQ(all[i], element(member, slice * count + i % count)) << i;
  }
  x.fill(elements(comm.rank(), slices * n * count));
  comm.reduce_scatter_slices(x.in(), x.out(), slices, count, DType::kF32, x.stream());
  const Floats mine = x.result(slices * count);
  for (int64_t i = 0; i < slices * count; ++i) {
    float sum = 0.0F;
    for (int r = 0; r < n; ++r)
      sum += element(r, (i / count * n + comm.rank()) * count + i % count);
    ASSERT_EQ(mine[i], sum) << i;
  }
}

void check_moves(Communicator& comm, Bench& x, int64_t count) {
  const int n = comm.size();
  x.fill(elements(comm.rank(), count));
  const int from = (comm.rank() + n - 1) % n;
  comm.send_recv(x.in(), (comm.rank() + 1) % n, x.out(), from, count, DType::kF32, x.stream());
  EXPECT_EQ(x.result(count), elements(from, count));
  comm.broadcast(x.in(), count, DType::kF32, n - 1, x.stream());
  EXPECT_EQ(x.in_result(count), elements(n - 1, count));
}

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << why_none();
    if (nccl_version().empty()) GTEST_SKIP() << "built without NCCL";
  }
};

TEST_F(Nccl, every_call_gives_what_the_host_computes) {
  run_ranks(std::min(4, num_devices()), [](World& control) {
    const auto backend = make_backend({.device = control.rank()});
    const auto world = make_nccl_world(control, *backend);
    const auto comm = world->make_group("all", everyone(world->size()));
    for (const int64_t count : {1, 1000, 300'001}) {
      Bench x(*backend, world->size() * count);
      check_gathers(*comm, x, count);
      check_sums(*comm, x, count);
      check_moves(*comm, x, count);
    }
    const auto& traffic = comm->traffic();
    EXPECT_EQ(traffic.all_gather.calls, 6);
    EXPECT_EQ(traffic.all_gather.bytes, 2 * (world->size() - 1) * 301'002 * 4);
  });
}

TEST_F(Nccl, slices_are_calls_of_their_own) {
  run_ranks(std::min(4, num_devices()), [](World& control) {
    const auto backend = make_backend({.device = control.rank()});
    const auto world = make_nccl_world(control, *backend);
    const auto comm = world->make_group("all", everyone(world->size()));
    Bench x(*backend, world->size() * 400'000);
    check_slices(*comm, x, 2, 200'000);
    check_slices(*comm, x, 16, 25'000);
    check_slices(*comm, x, 5, 3);
    EXPECT_EQ(comm->traffic().all_gather.calls, 3);
    EXPECT_EQ(comm->traffic().all_gather.bytes, (world->size() - 1) * 800'015 * 4);
  });
}

TEST_F(Nccl, a_group_of_one_copies) {
  const auto control = make_single_world();
  const auto backend = make_backend();
  const auto world = make_nccl_world(*control, *backend);
  const auto comm = world->make_group("alone", everyone(1));
  Bench x(*backend, 1000);
  check_gathers(*comm, x, 1000);
  check_sums(*comm, x, 1000);
  check_moves(*comm, x, 1000);
}

// Copy engines take a peer's part from where its own rank has its own: only where all agree.
TEST_F(Nccl, gathers_from_equal_and_from_other_offsets) {
  if (num_devices() < 2 || !has_copy_engine_gathers()) GTEST_SKIP() << "one GPU, or an old NCCL";
  run_ranks(std::min(4, num_devices()), [](World& control) {
    const auto backend = make_backend({.device = control.rank(), .symmetric = true});
    const auto world = make_nccl_world(control, *backend, {.copy_engine = true});
    constexpr int64_t kCount = 300'000;
    const int64_t room = (world->size() + 1) * kCount;
    for (const auto& [name, is_apart, num_arenas] :
         {std::tuple{"alike", false, 1}, {"apart", true, 1}, {"alike, two arenas", false, 2}}) {
      const int64_t shift = is_apart ? 4096 * world->rank() : 0;
      std::vector<std::unique_ptr<Allocation>> memory;
      GatheredMemory gathered{.layout = static_cast<uint64_t>(shift)};
      for (int i = 0; i < num_arenas; ++i) {
        memory.push_back(backend->allocate((room + 4096 * world->size()) * int64_t{4}));
        gathered.arenas.emplace_back(memory.back()->data(),
                                     static_cast<size_t>(memory.back()->bytes()));
      }
      const auto comm = world->make_gather_group(name, everyone(world->size()), gathered);
      std::byte* const in = memory.front()->data() + 4 * shift;
      std::byte* const out = memory.back()->data() + 4 * (shift + kCount);
      const Floats mine = elements(world->rank(), kCount);
      backend->upload(in, reinterpret_cast<const std::byte*>(mine.data()), 4 * kCount);
      comm->all_gather(in, out, kCount, DType::kF32, backend->streams()->stream(0));
      Floats all(static_cast<size_t>(world->size() * kCount));
      backend->download(reinterpret_cast<std::byte*>(all.data()), out, std::ssize(all) * 4);
      for (int r = 0; r < world->size(); ++r) {
        const auto part = all.begin() + r * kCount;
        EXPECT_EQ(Floats(part, part + kCount), elements(r, kCount)) << name;
      }
      world->barrier();
    }
  });
}

// The others compare their offsets with it, too.
TEST_F(Nccl, a_member_that_gathers_nothing_joins_a_group_that_gathers) {
  if (num_devices() < 2 || !has_copy_engine_gathers()) GTEST_SKIP() << "one GPU, or an old NCCL";
  run_ranks(2, [](World& control) {
    const auto backend = make_backend({.device = control.rank(), .symmetric = true});
    const auto world = make_nccl_world(control, *backend, {.copy_engine = true});
    world->set_timeout(std::chrono::seconds(30));
    const auto memory = backend->allocate(int64_t{1} << 20U);
    const GatheredMemory gathered{
        .arenas = {{memory->data(), static_cast<size_t>(memory->bytes())}}, .layout = 7};
    const auto comm = world->rank() == 0 ? world->make_gather_group("dp", everyone(2), gathered)
                                         : world->make_group("dp", everyone(2));
    Bench x(*backend, 2000);
    check_gathers(*comm, x, 1000);
    world->barrier();
  });
}

TEST_F(Nccl, a_peer_that_never_comes_ends_the_job_and_names_the_call) {
  if (num_devices() < 2) GTEST_SKIP() << "one GPU";
  try {
    run_ranks(2, [](World& control) {
      const auto backend = make_backend({.device = control.rank()});
      const auto world = make_nccl_world(control, *backend);
      world->set_timeout(std::chrono::seconds(3));
      const auto comm = world->make_group("dp", everyone(2));
      Bench x(*backend, 2000);
      x.fill(elements(control.rank(), 1000));
      comm->all_reduce(x.in(), x.out(), 1000, DType::kF32, ReduceOp::kSum, x.stream());
      EXPECT_EQ(x.result(1).size(), 1U);
      if (control.rank() == 0) {
        comm->all_gather(x.in(), x.out(), 1000, DType::kF32, x.stream());
        x.result(1);
      }
      world->barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const SystemError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("in all_gather 2 of \"dp\""), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tokamak::gpu
