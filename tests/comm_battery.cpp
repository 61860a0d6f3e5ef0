#include "tests/comm_battery.h"

#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace tokamak {
namespace {

uint64_t digest(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 14695981039346656037U;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 1099511628211U;
  return hash;
}

/// Values whose sums depend on their order.
std::vector<uint8_t> elements_of(int rank, int64_t count, DType dtype) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count * size_of(dtype)));
  uint64_t state = 88172645463325252U + static_cast<uint64_t>(rank);
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const float x = static_cast<float>(static_cast<int64_t>(state) >> 20U) * 0x1p-40F;
    if (dtype == DType::kF32) reinterpret_cast<float*>(bytes.data())[i] = x;
    if (dtype == DType::kBF16) reinterpret_cast<BF16*>(bytes.data())[i] = BF16(x);
    if (dtype == DType::kI64) {
      reinterpret_cast<int64_t*>(bytes.data())[i] = static_cast<int64_t>(state >> 8U);
    }
  }
  return bytes;
}

std::string run_collectives(Communicator& comm, int64_t count, DType dtype, int seed) {
  const int size = comm.size();
  const int rank = comm.rank();
  const auto mine = elements_of(seed + rank, count, dtype);
  const auto rows = elements_of(seed + rank, count * size, dtype);
  std::vector<uint8_t> one(mine.size());
  std::vector<uint8_t> all(rows.size());
  std::string text = fmt::format("{} {}:", count, name_of(dtype));
  const auto note = [&](const std::vector<uint8_t>& got) {
    text += fmt::format(" {:x}", digest(got));
  };
  comm.all_gather(mine.data(), all.data(), count, dtype, nullptr);
  note(all);
  comm.reduce_scatter(rows.data(), one.data(), count, dtype, nullptr);
  note(one);
  comm.all_reduce(rows.data(), all.data(), count * size, dtype, ReduceOp::kSum, nullptr);
  note(all);
  comm.all_reduce(mine.data(), one.data(), count, dtype, ReduceOp::kMax, nullptr);
  note(one);
  comm.all_to_all(rows.data(), all.data(), count, dtype, nullptr);
  note(all);
  one = mine;
  comm.broadcast(one.data(), count, dtype, size - 1, nullptr);
  note(one);
  comm.send_recv(mine.data(), (rank + 1) % size, one.data(), (rank + size - 1) % size, count, dtype,
                 nullptr);
  note(one);
  return text + "\n";
}

std::string run_threads(World& world, const std::vector<int>& everyone) {
  constexpr size_t kThreads = 3;
  std::vector<std::unique_ptr<Communicator>> comms;
  for (size_t i = 0; i < kThreads; ++i) comms.push_back(world.make_group("stream", everyone));
  std::vector<std::string> texts(kThreads);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (int64_t round = 0; round < 10; ++round) {
          texts[i] += run_collectives(*comms[i], 1 + round * 700, DType::kF32, static_cast<int>(i));
        }
      });
    }
  }
  return std::accumulate(texts.begin(), texts.end(), std::string());
}

}  // namespace

std::string run_battery(World& world) {
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto all = world.make_group("all", everyone);
  std::string text;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    for (const int64_t count : {0, 1, 1000, 70'001}) text += run_collectives(*all, count, dtype, 0);
  }
  std::vector<int> half;
  for (int r = world.size() - 1; r >= 0; --r) {
    if (r % 2 == world.rank() % 2) half.push_back(r);
  }
  const auto group = world.make_group("half", half);
  text += run_collectives(*group, 5000, DType::kF32, world.rank() % 2);
  text += run_threads(world, everyone);
  const auto& traffic = all->traffic();
  return text + fmt::format("traffic {} {} {} {} {} {}\n", traffic.all_gather.bytes,
                            traffic.reduce_scatter.bytes, traffic.all_reduce.bytes,
                            traffic.all_to_all.bytes, traffic.broadcast.bytes, traffic.send.bytes);
}

}  // namespace tokamak
