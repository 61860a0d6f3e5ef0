#include "tokamak/launch/cluster/rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "tokamak/core/timing.h"
#include "tokamak/train/bench/op_benchmark.h"

namespace tokamak::launch {
namespace {

/// Runs the scene at `dims` for a short time; returns the row of `op`.
OpTime time_op(const char* scene_name, const char* op, const Dims& dims, DType dtype,
               Backend& backend) {
  constexpr double kSeconds = 0.2;
  for (const OpScene& scene : op_scenes()) {
    if (scene.name != scene_name) continue;
    for (const OpTime& row : benchmark_scene(scene, dims, dtype, backend, {}, kSeconds)) {
      if (row.op == op) return row;
    }
  }
  return {};
}

double rate_of(double amount, const OpTime& time) {
  return time.seconds > 0.0 ? amount / time.seconds : 0.0;
}

/// One exchange of all ranks at a time, each of `bytes`, until `budget_s` is spent.
class Exchange {
 public:
  Exchange(World& control, World& ranks, Backend& backend, int64_t bytes, double budget_s)
      : control_(control), backend_(backend), bytes_(bytes), budget_s_(budget_s) {
    std::vector<int> all(ranks.size());
    std::iota(all.begin(), all.end(), 0);
    comm_ = ranks.make_group("preflight", all);
    out_ = backend.allocate(bytes);
    in_ = backend.allocate(bytes);
    if (backend.streams() != nullptr) end_ = backend.streams()->make_event(false);
  }

  /// Whether there is time for another exchange, by the clock of rank 0. Collective.
  bool has_time() const {
    const bool mine = seconds_since(start_) < budget_s_;
    return control_.broadcast_text(mine ? "yes" : "no", 0) == "yes";
  }

  /// Returns bytes per second of the best of some exchanges. The first opens the connection, and
  /// counts only where there is no time for another.
  double rate(int to, int from) {
    constexpr int kRuns = 3;
    double best = 0.0;
    for (int run = 0; run <= kRuns && (run == 0 || has_time()); ++run) {
      control_.barrier();
      const auto start = std::chrono::steady_clock::now();
      comm_->send_recv(out_->data(), to, in_->data(), from, bytes_ / 4, DType::kF32, stream());
      wait();
      const double rate = static_cast<double>(bytes_) / seconds_since(start);
      best = run == 1 ? rate : std::max(best, rate);
    }
    return best;
  }

 private:
  CommStream stream() const {
    return backend_.streams() == nullptr ? nullptr : backend_.streams()->stream(0);
  }

  void wait() {
    if (end_ == nullptr) return;
    backend_.streams()->record(end_, stream());
    backend_.streams()->synchronize(end_);
  }

  World& control_;
  Backend& backend_;
  int64_t bytes_;
  double budget_s_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Allocation> out_;
  std::unique_ptr<Allocation> in_;
  DeviceEvent end_ = nullptr;
};

}  // namespace

double measure_copy_rate(int threads, size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  double best = 0.0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t) {
      const size_t begin = bytes * static_cast<size_t>(t) / static_cast<size_t>(threads);
      const size_t end = bytes * static_cast<size_t>(t + 1) / static_cast<size_t>(threads);
      workers.emplace_back(
          [&, begin, end] { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
    }
    workers.clear();
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds_since(start));
  }
  return best;
}

void measure_device(Backend& backend, const CheckEffort& effort, RankReport& report) {
  const int64_t size = report.is_gpu ? 8192 : effort.matmul_size;
  const DType dtype = report.is_gpu ? DType::kBF16 : DType::kF32;
  const OpTime matmul = time_op("linear", "linear", {size, size, size}, dtype, backend);
  report.gemm_flops = rate_of(matmul.flops, matmul);
  if (report.is_gpu) {
    const OpTime copy = time_op("add", "add", {16384, 4096}, dtype, backend);
    report.copy_bytes_per_s = rate_of(copy.bytes, copy);
  } else {
    report.copy_bytes_per_s = measure_copy_rate(backend.target().threads, effort.copy_bytes);
  }
}

void measure_network(World& control, World& ranks, Backend& backend, double budget_s,
                     RankReport& report) {
  const int n = control.size();
  const int rank = control.rank();
  if (n == 1) return;
  Exchange exchange(control, ranks, backend, report.is_gpu ? 64 << 20 : 4 << 20, budget_s);
  report.ring_bytes_per_s = exchange.rate((rank + 1) % n, (rank + n - 1) % n);
  constexpr int kFew = 8;
  const auto next = [&](int distance) { return n <= kFew ? distance + 1 : distance * 2; };
  const int end = n <= kFew ? kFew : n;
  for (int distance = 1; distance < end && exchange.has_time(); distance = next(distance)) {
    const int partner = (rank ^ distance) < n ? rank ^ distance : -1;
    const double rate = exchange.rate(partner, partner);
    if (partner < 0 || (report.pair_rank >= 0 && rate >= report.pair_bytes_per_s)) continue;
    report.pair_bytes_per_s = rate;
    report.pair_rank = partner;
  }
}

}  // namespace tokamak::launch
