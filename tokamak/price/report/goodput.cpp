#include "tokamak/price/report/goodput.h"

#include <algorithm>
#include <cmath>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

constexpr double kLeftOfDevice = 2.0 * kGiB;  // as train/state/checkpoint_saver.cpp leaves it

// Which ranks write a state.
struct Writers {
  int num_nodes = 0;
  int ranks_of_node = 0;  // of the node with most
};

Writers writers_of(const SavedState& state, int devices_per_node) {
  Writers writers;
  int node = -1;
  int ranks = 0;
  for (int rank = 0; rank < state.num_ranks; ++rank) {
    if (rank / state.block_ranks % state.num_replicas != 0) continue;
    if (rank / devices_per_node != node) {
      node = rank / devices_per_node;
      ranks = 0;
      ++writers.num_nodes;
    }
    writers.ranks_of_node = std::max(writers.ranks_of_node, ++ranks);
  }
  return writers;
}

}  // namespace

double goodput(const FailureModel& m, double interval_s) {
  const double rate = m.failures_per_s;
  if (rate == 0.0) return interval_s / (interval_s + m.stall_s);
  const double spent =
      std::expm1(rate * (interval_s + m.stall_s)) * std::exp(rate * m.recovery_s()) / rate;
  return interval_s / spent;
}

double best_interval_s(const FailureModel& m) {
  constexpr double kShortest = 1.0;
  constexpr double kLongest = 30 * 86400.0;
  // The derivative of log G is 1/t - rate / (1 - exp(-rate (t + C))): it falls in t, so that a
  // bisection finds the greatest goodput.
  double low = 1e-6;
  double high = kLongest;
  const double rate = m.failures_per_s;
  if (rate == 0.0) return kLongest;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low * high);
    const bool rises = 1.0 / middle > rate / -std::expm1(-rate * (middle + m.stall_s));
    (rises ? low : high) = middle;
  }
  return std::max({high, m.durable_s, kShortest});
}

CheckpointCost checkpoint_cost(const SavedState& state, double hidden_s, const Machine& machine) {
  const Storage& storage = machine.storage;
  const Writers writers = writers_of(state, storage.devices_per_node);
  CheckpointCost cost;
  cost.rank_bytes = state.bytes / state.num_ranks * state.num_replicas;
  cost.has_storage = storage.write_bytes_per_s > 0.0 || storage.total_bytes_per_s > 0.0;
  const auto seconds = [](double bytes, double rate) { return rate > 0.0 ? bytes / rate : 0.0; };
  // Returns the seconds of `nodes` nodes at once, each with the bytes of its ranks.
  const auto storage_s = [&](int num_nodes, int ranks, double own) {
    const double fair = storage.total_bytes_per_s / num_nodes;
    const double rate = own == 0.0 || fair == 0.0 ? std::max(own, fair) : std::min(own, fair);
    return seconds(cost.rank_bytes * ranks, rate);
  };
  cost.copy_s = seconds(cost.rank_bytes, machine.device.copies.to_host_bytes_per_s);
  const double write_s =
      storage_s(writers.num_nodes, writers.ranks_of_node, storage.write_bytes_per_s);
  if (state.in_background) {
    const Device& device = machine.device;
    if (device.copies.save_bytes_per_s > 0.0)
      cost.copy_s = cost.rank_bytes / device.copies.save_bytes_per_s;
    // Each byte is read and written.
    const double snapshot_rate = device.copies.snapshot_bytes_per_s > 0.0
                                     ? device.copies.snapshot_bytes_per_s
                                     : 0.5 * device.memory.bytes_per_s * device.memory.efficiency;
    cost.stall_s = cost.rank_bytes + kLeftOfDevice <= state.free_bytes
                       ? cost.rank_bytes / snapshot_rate
                       : std::max(0.0, cost.copy_s - hidden_s);
    cost.durable_s = cost.copy_s + write_s + storage.commit_s;
  } else {
    // Blocks are written while others are copied, and the step stands until all is safe.
    cost.durable_s = std::max(cost.copy_s, write_s) + storage.commit_s;
    cost.stall_s = cost.durable_s;
  }
  const int node = std::min(state.num_ranks, storage.devices_per_node);
  const int num_nodes = (state.num_ranks + storage.devices_per_node - 1) / storage.devices_per_node;
  cost.load_s = storage_s(num_nodes, node, storage.read_bytes_per_s) +
                seconds(cost.rank_bytes, machine.device.copies.from_host_bytes_per_s);
  return cost;
}

FailureModel failure_model(int num_ranks, const CheckpointCost& cost, const Machine& machine) {
  return {.failures_per_s = machine.failures.per_device_s * num_ranks,
          .stall_s = cost.stall_s,
          .detect_s = machine.failures.detect_s,
          .restart_s = machine.failures.restart_s + cost.load_s,
          .durable_s = cost.durable_s};
}

int num_spares(int num_nodes, double down) {
  TOK_REQUIRE(num_nodes >= 0 && down >= 0.0 && down <= 1.0,
              "spares: wanted nodes and a probability, got {} and {}", num_nodes, down);
  constexpr double kEnough = 0.99;
  double sum = 0.0;
  for (int k = 0; k < num_nodes; ++k) {
    const double ways =
        std::lgamma(num_nodes + 1.0) - std::lgamma(k + 1.0) - std::lgamma(num_nodes - k + 1.0);
    const double failed = k == 0 ? 0.0 : k * std::log(down);
    sum += std::exp(ways + failed + (num_nodes - k) * std::log1p(-down));
    if (sum >= kEnough) return k;
  }
  return num_nodes;
}

}  // namespace tokamak::price
