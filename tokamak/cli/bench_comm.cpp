#include "tokamak/cli/bench_comm.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "tokamak/cli/words.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak::cli {
namespace {

constexpr DType kDType = DType::kF32;

struct Buffers {
  std::vector<float> in;
  std::vector<float> out;
};

struct Collective {
  std::string_view name;
  /// Bytes on the busiest link over bytes of the buffer, as nccl-tests counts them.
  double (*bus_factor)(double num_ranks);
  /// `count` elements are the whole buffer.
  void (*run)(Communicator& comm, Buffers& x, int64_t count);
};

constexpr Collective kCollectives[] = {
    {"all_gather", [](double n) { return (n - 1) / n; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.all_gather(x.in.data(), x.out.data(), count / comm.size(), kDType, nullptr);
     }},
    {"reduce_scatter", [](double n) { return (n - 1) / n; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.reduce_scatter(x.in.data(), x.out.data(), count / comm.size(), kDType, nullptr);
     }},
    {"all_reduce", [](double n) { return 2 * (n - 1) / n; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.all_reduce(x.in.data(), x.out.data(), count, kDType, ReduceOp::kSum, nullptr);
     }},
    {"all_to_all", [](double n) { return (n - 1) / n; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.all_to_all(x.in.data(), x.out.data(), count / comm.size(), kDType, nullptr);
     }},
    {"broadcast", [](double) { return 1.0; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.broadcast(x.in.data(), count, kDType, 0, nullptr);
     }},
    {"send_recv", [](double) { return 1.0; },
     [](Communicator& comm, Buffers& x, int64_t count) {
       comm.send_recv(x.in.data(), (comm.rank() + 1) % comm.size(), x.out.data(),
                      (comm.rank() + comm.size() - 1) % comm.size(), count, kDType, nullptr);
     }},
};

/// Mean over `repeats` calls of the slowest rank.
double seconds_of(Communicator& comm, const std::function<void()>& call, int64_t repeats) {
  double seconds = 0;
  comm.all_reduce(&seconds, &seconds, 1, DType::kF64, ReduceOp::kMax, nullptr);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) call();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
            static_cast<double>(repeats);
  comm.all_reduce(&seconds, &seconds, 1, DType::kF64, ReduceOp::kMax, nullptr);
  return seconds;
}

/// Prints a line of the table and returns the same as JSON.
std::string measure(Communicator& comm, const Collective& collective, int64_t bytes,
                    double budget_s) {
  const int64_t unit = size_of(kDType) * comm.size();
  const int64_t count = std::max<int64_t>(bytes / unit, 1) * comm.size();
  const auto elements = static_cast<size_t>(count);
  Buffers x{.in = std::vector<float>(elements, 1.0F), .out = std::vector<float>(elements)};
  const auto call = [&] { collective.run(comm, x, count); };
  call();
  const double first_s = seconds_of(comm, call, 2);
  const auto repeats = std::clamp<int64_t>(static_cast<int64_t>(budget_s / first_s), 3, 1000);
  const double seconds = seconds_of(comm, call, repeats);
  if (comm.rank() != 0) return "";
  const auto buffer = static_cast<double>(count * size_of(kDType));
  const double bus = collective.bus_factor(comm.size()) * buffer / seconds;
  fmt::print("{:<15}{:>12}{:>12.1f}{:>11.2f}{:>11.2f}\n", collective.name, buffer, 1e6 * seconds,
             1e-9 * buffer / seconds, 1e-9 * bus);
  const Json line{
      {"bench", "comm"},          {"collective", collective.name},    {"ranks", comm.size()},
      {"dtype", name_of(kDType)}, {"bytes", count * size_of(kDType)}, {"repeats", repeats},
      {"seconds", seconds},       {"bytes_per_s", buffer / seconds},  {"bus_bytes_per_s", bus}};
  std::fflush(stdout);
  return line.dump() + "\n";
}

}  // namespace

int run_bench_comm(Args args) {
  CLI::App app("Times collectives between ranks: tokamak launch -n 4 -- bench comm",
               "tokamak bench comm");
  int64_t min_bytes = 1 << 10;
  int64_t max_bytes = 64 << 20;
  int64_t factor = 16;
  double budget_s = 0.1;
  app.add_option("--min-bytes", min_bytes, "smallest buffer")->capture_default_str();
  app.add_option("--max-bytes", max_bytes, "largest buffer")->capture_default_str();
  app.add_option("--factor", factor, "from one size to the next")->capture_default_str();
  app.add_option("--seconds", budget_s, "for each collective and size")->capture_default_str();
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(min_bytes >= 1 && max_bytes >= min_bytes,
              "--min-bytes {} --max-bytes {}: wanted 1 or "
              "more, in this order",
              min_bytes, max_bytes);
  TOK_REQUIRE(factor >= 2, "--factor {}: wanted 2 or more", factor);
  const auto world = make_world(read_launch_environment());
  TOK_REQUIRE(world->size() > 1,
              "tokamak bench comm: one rank talks to nobody; tokamak launch -n 4 -- bench comm");
  std::vector<int> ranks(static_cast<size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto comm = world->make_group("bench", ranks);
  if (world->rank() == 0) {
    fmt::print("{} ranks, {}\n{:<15}{:>12}{:>12}{:>11}{:>11}\n", world->size(), name_of(kDType),
               "collective", "bytes", "us", "GB/s", "bus GB/s");
  }
  std::string json;
  for (const Collective& collective : kCollectives) {
    for (int64_t bytes = min_bytes; bytes <= max_bytes; bytes *= factor) {
      json += measure(*comm, collective, bytes, budget_s);
    }
  }
  fmt::print("{}", json);
  return 0;
}

}  // namespace tokamak::cli
