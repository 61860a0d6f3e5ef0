// Ranks that decide alike do so by the same bits, whatever order a communicator adds in.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"

#include "tests/fixtures/mesh_training.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

// Returns what a group makes of its members' terms, of which each group has its own idea.
using Sum = std::function<double(const std::vector<int>& ranks, std::vector<double> terms)>;

// A group that sums single fp64 values in a way of its own.
class GroupWithOrder final : public Communicator {
 public:
  GroupWithOrder(std::unique_ptr<Communicator> inner, std::span<const int> ranks, const Sum& sum)
      : inner_(std::move(inner)), ranks_(ranks.begin(), ranks.end()), sum_(sum) {}

  int rank() const override { return inner_->rank(); }

  int size() const override { return inner_->size(); }

  void all_gather_slices(const void* in, void* out, int64_t slices, int64_t count, DType dtype,
                         CommStream stream) override {
    inner_->all_gather_slices(in, out, slices, count, dtype, stream);
  }

  void reduce_scatter_slices(const void* in, void* out, int64_t slices, int64_t count, DType dtype,
                             CommStream stream) override {
    inner_->reduce_scatter_slices(in, out, slices, count, dtype, stream);
  }

  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  CommStream stream) override {
    if (dtype != DType::kF64 || count != 1 || op != ReduceOp::kSum)
      return inner_->all_reduce(in, out, count, dtype, op, stream);
    std::vector<double> terms(ranks_.size());
    const double mine = *static_cast<const double*>(in);
    inner_->all_gather(&mine, terms.data(), 1, dtype, stream);
    *static_cast<double*>(out) = sum_(ranks_, std::move(terms));
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype,
                  CommStream stream) override {
    inner_->all_to_all(in, out, count, dtype, stream);
  }

  void broadcast(void* data, int64_t count, DType dtype, int root, CommStream stream) override {
    inner_->broadcast(data, count, dtype, root, stream);
  }

  void send_recv(const void* out, int to, void* in, int from, int64_t count, DType dtype,
                 CommStream stream) override {
    inner_->send_recv(out, to, in, from, count, dtype, stream);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::vector<int> ranks_;
  const Sum& sum_;
};

class WorldWithOrders final : public World {
 public:
  WorldWithOrders(World& inner, const Sum& sum) : inner_(inner), sum_(sum) {}

  int rank() const override { return inner_.rank(); }

  int size() const override { return inner_.size(); }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> ranks) override {
    return std::make_unique<GroupWithOrder>(inner_.make_group(name, ranks), ranks, sum_);
  }

  void barrier() override { inner_.barrier(); }

  std::vector<std::string> all_gather_text(const std::string& mine) override {
    return inner_.all_gather_text(mine);
  }

  std::string broadcast_text(const std::string& text, int root) override {
    return inner_.broadcast_text(text, root);
  }

  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }

  void abort(int code, const std::string& why) override { inner_.abort(code, why); }

  FlightPage& flights() override { return inner_.flights(); }

  std::string describe_flights() const override { return inner_.describe_flights(); }

  std::string find_fault() const override { return inner_.find_fault(); }

 private:
  World& inner_;
  const Sum& sum_;
};

using BeforeStep = std::function<void(int rank, int64_t step, const StateAccess& access)>;

void train_with(const Config& config, const Sum& sum, const BeforeStep& before_step) {
  const int64_t world_size = default_world_size(config);
  const Degrees degrees = resolve_degrees(config.parallelism, world_size);
  run_ranks(static_cast<int>(world_size), [&](World& world) {
    WorldWithOrders mine(world, sum);
    const auto backend = cpu::make_backend({.threads = 1});
    TrainerOptions options =
        options_of(config, nullptr, {.degrees = degrees, .rank = world.rank()});
    options.before_step = [&, rank = world.rank()](int64_t step, const StateAccess& access) {
      before_step(rank, step, access);
    };
    train(options, mine, *backend);
  });
}

TEST(SameBits, ReplicasClipByTheSameNorm) {
  const ScratchFolder scratch;
  Config config = on_mesh(small_config(scratch.path()), {1, 2, 4, 1, 1});
  config.checkpoint.enable = false;
  config.training.local_batch_size = 1;
  std::mutex mutex;
  std::map<int, std::vector<double>> sums;   // of squares and losses, by the group's first rank
  std::map<int, std::vector<double>> norms;  // of all steps but the last, by rank
  // Each group begins with another of its members, and rounds enough for a norm to tell.
  const Sum sum = [&](const std::vector<int>& ranks, std::vector<double> terms) {
    std::rotate(terms.begin(), terms.begin() + ranks[0] / 4 % 4, terms.end());
    const double total = std::accumulate(terms.begin(), terms.end(), 0.0F);
    const std::scoped_lock lock(mutex);
    if (ranks.size() == 4) sums[ranks[0]].push_back(total);
    return total;
  };
  train_with(config, sum, [&](int rank, int64_t step, const StateAccess& access) {
    const double norm = access.read<double>(access.states().find("grad_norm"))[0];
    const std::scoped_lock lock(mutex);
    if (step > 1) norms[rank].push_back(norm);
  });
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_NE(sums[0], sums[4]);
  ASSERT_EQ(norms.size(), 8U);
  EXPECT_EQ(norms[0].size(), 5U);
  for (const auto& [rank, of_rank] : norms) EXPECT_EQ(of_rank, norms[0]) << rank;
}

TEST(SameBits, ALossThatDiffersIsJudgedAlike) {
  const ScratchFolder scratch;
  Config config = on_mesh(small_config(scratch.path()), {1, 1, 2, 1, 2});
  config.training.on_spike = "rollback";
  config.training.steps = 24;
  config.training.seq_len = 4;
  config.checkpoint.interval = 20;
  std::array<std::atomic<int64_t>, 4> steps{};
  // The second copy of a loss is far off in one step.
  const Sum sum = [&](const std::vector<int>& ranks, const std::vector<double>& terms) {
    const double total = std::accumulate(terms.begin(), terms.end(), 0.0);
    return ranks[0] == 1 && steps[1] == 22 ? 100.0 * total : total;
  };
  int64_t tries = 0;
  train_with(config, sum, [&](int rank, int64_t step, const StateAccess&) {
    steps[rank] = step;
    if (rank == 0) ++tries;
  });
  EXPECT_EQ(tries, 24);
}

}  // namespace
}  // namespace tokamak
