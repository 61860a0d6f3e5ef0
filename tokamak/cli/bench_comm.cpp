#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "tokamak/cli/calibration_options.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/words.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/core/timing.h"
#include "tokamak/price/task/calibrate.h"

namespace tokamak::cli {
namespace {

constexpr DType kDType = DType::kF32;

// The means by which ranks communicate: groups, memory, and the device's queue if there is one.
struct Bench {
  Backend& backend;
  Communicator& comm;
  Communicator& host;  ///< the same ranks, on host memory
  std::unique_ptr<Allocation> in;
  std::unique_ptr<Allocation> out;

  CommStream stream() const {
    return backend.streams() == nullptr ? nullptr : backend.streams()->stream(0);
  }
};

struct Collective {
  std::string_view name;
  price::Collective kind;
  /// Bytes on the busiest link over bytes of the buffer, as nccl-tests counts them.
  double (*bus_factor)(double num_ranks);
  /// `count` elements are the whole buffer.
  void (*run)(const Bench& b, int64_t count);
};

constexpr Collective kCollectives[] = {
    {"all_gather", price::Collective::kAllGather, [](double n) { return (n - 1) / n; },
     [](const Bench& b, int64_t count) {
       b.comm.all_gather(b.in->data(), b.out->data(), count / b.comm.size(), kDType, b.stream());
     }},
    {"reduce_scatter", price::Collective::kReduceScatter, [](double n) { return (n - 1) / n; },
     [](const Bench& b, int64_t count) {
       b.comm.reduce_scatter(b.in->data(), b.out->data(), count / b.comm.size(), kDType,
                             b.stream());
     }},
    {"all_reduce", price::Collective::kAllReduce, [](double n) { return 2 * (n - 1) / n; },
     [](const Bench& b, int64_t count) {
       b.comm.all_reduce(b.in->data(), b.out->data(), count, kDType, ReduceOp::kSum, b.stream());
     }},
    {"all_to_all", price::Collective::kAllToAll, [](double n) { return (n - 1) / n; },
     [](const Bench& b, int64_t count) {
       b.comm.all_to_all(b.in->data(), b.out->data(), count / b.comm.size(), kDType, b.stream());
     }},
    {"broadcast", price::Collective::kBroadcast, [](double) { return 1.0; },
     [](const Bench& b, int64_t count) {
       b.comm.broadcast(b.in->data(), count, kDType, 0, b.stream());
     }},
    {"send_recv", price::Collective::kSendRecv, [](double) { return 1.0; },
     [](const Bench& b, int64_t count) {
       const int n = b.comm.size();
       b.comm.send_recv(b.in->data(), (b.comm.rank() + 1) % n, b.out->data(),
                        (b.comm.rank() + n - 1) % n, count, kDType, b.stream());
     }},
};

// Waits until the device has done what it was given.
void await(const Bench& b, DeviceEvent end) {
  if (end == nullptr) return;
  b.backend.streams()->record(end, b.stream());
  b.backend.streams()->synchronize(end);
}

/// Returns the mean over `repeats` calls of the slowest rank.
double seconds_of(const Bench& b, DeviceEvent end, const std::function<void()>& call,
                  int64_t repeats) {
  double seconds = 0;
  const auto slowest = [&] {
    b.host.all_reduce(&seconds, &seconds, 1, DType::kF64, ReduceOp::kMax, nullptr);
  };
  slowest();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) call();
  await(b, end);
  seconds = seconds_since(start) / static_cast<double>(repeats);
  slowest();
  return seconds;
}

/// Times a collective. Rank 0 prints a line of the table, adds it to `timed` and returns it as
/// JSON.
std::string measure(const Bench& b, DeviceEvent end, const Collective& collective, int64_t count,
                    double budget_s, std::vector<price::TimedCollective>& timed) {
  const auto call = [&] { collective.run(b, count); };
  call();
  await(b, end);
  const double first_s = seconds_of(b, end, call, 2);
  const auto repeats = std::clamp<int64_t>(static_cast<int64_t>(budget_s / first_s), 3, 1000);
  const double seconds = seconds_of(b, end, call, repeats);
  if (b.comm.rank() != 0) return "";
  const auto buffer = static_cast<double>(count * size_of(kDType));
  timed.push_back({.kind = collective.kind, .bytes = buffer, .seconds = seconds});
  const double bus = collective.bus_factor(b.comm.size()) * buffer / seconds;
  fmt::print("{:<15}{:>12}{:>12.1f}{:>11.2f}{:>11.2f}\n", collective.name, buffer, 1e6 * seconds,
             1e-9 * buffer / seconds, 1e-9 * bus);
  const Json line{{"bench", "comm"},
                  {"collective", collective.name},
                  {"device", device_text(b.backend)},
                  {"ranks", b.comm.size()},
                  {"dtype", name_of(kDType)},
                  {"bytes", count * size_of(kDType)},
                  {"repeats", repeats},
                  {"seconds", seconds},
                  {"bytes_per_s", buffer / seconds},
                  {"bus_bytes_per_s", bus}};
  std::fflush(stdout);
  return line.dump() + "\n";
}

// Returns a number of elements that ranks share evenly.
int64_t elements_of(int64_t bytes, int num_ranks) {
  return std::max<int64_t>(bytes / size_of(kDType) / num_ranks, 1) * num_ranks;
}

}  // namespace

int run_bench_comm(Args args) {
  CLI::App app("Times collectives between ranks: tokamak launch -n 4 -- bench comm",
               "tokamak bench comm");
  int64_t max_bytes = 0;
  int64_t factor = 0;
  double budget_s = 0.1;
  std::string device = "auto";
  app.add_option("--max-bytes", max_bytes, "largest buffer; 64 MiB, on GPUs 1 GiB");
  app.add_option("--factor", factor, "from one size to the next; 16, on GPUs 4");
  app.add_option("--seconds", budget_s, "for each collective and size")->capture_default_str();
  app.add_option("--device", device, kDeviceHelp)->capture_default_str();
  CalibrationOptions calibration;
  calibration.add_to(app);
  if (!parse(app, args)) return 0;
  check_budget(budget_s);
  const bool on_gpus = means_gpu(device);
  const LaunchEnvironment launched = read_launch_environment();
  calibration.check(on_gpus, launched);
  const int64_t min_bytes = on_gpus ? 1 << 20 : 1 << 10;
  if (app.count("--max-bytes") == 0) max_bytes = on_gpus ? 1 << 30 : 64 << 20;
  if (app.count("--factor") == 0) factor = on_gpus ? 4 : 16;
  TOK_REQUIRE(max_bytes >= min_bytes, "--max-bytes {}: wanted {} or more", max_bytes, min_bytes);
  TOK_REQUIRE(factor >= 2, "--factor {}: wanted 2 or more", factor);
  const auto world = make_world(launched);
  TOK_REQUIRE(world->size() > 1,
              "tokamak bench comm: one rank talks to nobody; tokamak launch -n 4 -- bench comm");
  std::vector<int> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto backend = open_backend({.device = device, .threads = 1}, launched);
  std::unique_ptr<World> of_gpus;
  World& talkers = device_world(*world, *backend, launched, false, of_gpus);
  const auto comm = talkers.make_group("bench", ranks);
  const auto host = world->make_group("clock", ranks);
  const int64_t room = elements_of(max_bytes, world->size()) * size_of(kDType);
  const Bench bench{.backend = *backend,
                    .comm = *comm,
                    .host = *host,
                    .in = backend->allocate(room),
                    .out = backend->allocate(room)};
  const DeviceEvent end =
      backend->streams() == nullptr ? nullptr : backend->streams()->make_event(false);
  if (world->rank() == 0) {
    fmt::print("{} ranks, {}{}\n{:<15}{:>12}{:>12}{:>11}{:>11}\n", world->size(), name_of(kDType),
               on_gpus ? ", " + device_text(*backend) : "", "collective", "bytes", "us", "GB/s",
               "bus GB/s");
  }
  std::string json;
  std::vector<price::TimedCollective> timed;
  for (const Collective& collective : kCollectives) {
    for (int64_t bytes = min_bytes;; bytes *= factor) {
      json += measure(bench, end, collective, elements_of(bytes, world->size()), budget_s, timed);
      if (bytes > max_bytes / factor) break;
    }
  }
  fmt::print("{}", json);
  if (!calibration.file.empty() && world->rank() == 0) {
    write_file_atomic(calibration.file,
                      price::fabric_toml(calibration.machine, world->size(), timed));
    fmt::print("calibration: {}\n", calibration.file);
  }
  return 0;
}

}  // namespace tokamak::cli
