#include "tokamak/price/run/slowest_place.h"

#include <algorithm>
#include <vector>

#include "tokamak/price/task/collective_time.h"

namespace tokamak {
namespace {

constexpr double kMore = 1.0 + 1e-9;

double gather_s(const price::GroupLayout& group, const price::Machine& machine) {
  constexpr double kBytes = 64 << 20;
  return price::collective_seconds(price::Collective::kAllGather, kBytes, group, machine);
}

// Seconds of a group of `size` ranks, `stride` apart, by the place of its first rank.
class GroupSeconds {
 public:
  GroupSeconds(int size, int stride, int period, const price::Machine& machine)
      : size_(size),
        stride_(stride),
        machine_(machine),
        seconds_(static_cast<size_t>(period), -1) {}

  double of(int first) {
    if (size_ == 1) return 0.0;
    double& seconds = seconds_[static_cast<size_t>(first) % seconds_.size()];
    if (seconds < 0.0)
      seconds = gather_s(price::strided_layout(size_, stride_, machine_, first), machine_);
    return seconds;
  }

 private:
  int size_;
  int stride_;
  const price::Machine& machine_;
  std::vector<double> seconds_;
};

// The groups of a mesh in the fabric, where positions of ranks repeat after `period` ranks.
struct MeshGroups {
  MeshGroups(const Mesh& mesh, int period, const price::Machine& machine)
      : tp(mesh.degree(MeshAxis::kTp)),
        cp(mesh.degree(MeshAxis::kCp)),
        owners(mesh.degree(kShardAxes)),
        replicas(mesh.degree(MeshAxis::kDpReplicate)),
        num_stages(mesh.degree(MeshAxis::kPp)),
        ranks_per_stage(mesh.size() / num_stages),
        tensor(tp, 1, period, machine),
        context(cp, tp, period, machine),
        shard(owners, tp, period, machine),
        replica(replicas, tp * owners, period, machine) {}

  // Returns seconds of its tensor- and context-parallel groups, for which stages wait one after the
  // other.
  double model_s(int place) {
    double sum = 0.0;
    double most = 0.0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int rank = stage * ranks_per_stage + place;
      const double seconds =
          tensor.of(rank - place % tp) + context.of(rank - place % (tp * cp) + place % tp);
      sum += seconds;
      most = std::max(most, seconds);
    }
    return sum + num_stages * most;
  }

  // Returns seconds of its owners and replicas in the worst stage; replicas share one owner's
  // slice.
  double data_s(int place) {
    const int block = tp * owners;
    double most = 0.0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int first = stage * ranks_per_stage;
      const double seconds = shard.of(first + place / block * block + place % tp) +
                             replica.of(first + place % block) / owners;
      most = std::max(most, seconds);
    }
    return most;
  }

  int tp, cp, owners, replicas, num_stages, ranks_per_stage;
  GroupSeconds tensor, context, shard, replica;
};

bool is_cut(const price::Level& level, int ranks) {
  return level.num_devices % ranks != 0 && ranks % level.num_devices != 0;
}

}  // namespace

CausalWork causal_work(const DistributeOptions& options) {
  return options.head_and_tail ? CausalWork::kEven : CausalWork::kOfLastMost;
}

int first_of_busiest(const Mesh& mesh, CausalWork work) {
  const int last = mesh.degree(MeshAxis::kCp) - 1;
  return work == CausalWork::kOfLastMost ? last * mesh.degree(MeshAxis::kTp) : 0;
}

int slowest_place(const Mesh& mesh, const price::Machine& machine, CausalWork work) {
  const int busiest = first_of_busiest(mesh, work);  // nothing else comes near
  const int tp = mesh.degree(MeshAxis::kTp);
  const int span = tp * mesh.degree(MeshAxis::kCp);
  const int block = span * mesh.degree(MeshAxis::kDpShard);
  int period = 0;
  bool cuts = false;
  bool cuts_tp = false;
  for (const price::Level& level : machine.levels) {
    if (level.num_devices == 0 || level.num_devices >= mesh.size()) break;
    period = level.num_devices;  // a multiple of that of inner levels
    cuts_tp = cuts_tp || is_cut(level, tp);
    cuts = cuts || cuts_tp || is_cut(level, span) || is_cut(level, block);
  }
  if (!cuts) return busiest;
  MeshGroups groups(mesh, period, machine);
  int slowest = busiest;
  double longest_s = 0.0;
  for (int place = busiest; place < groups.ranks_per_stage; place += cuts_tp ? 1 : tp) {
    if (place % span < busiest) continue;
    const double seconds = groups.model_s(place) + groups.data_s(place);
    if (seconds <= longest_s * kMore) continue;
    longest_s = seconds;
    slowest = place;
  }
  return slowest;
}

int slowest_place(const DistributeOptions& options, const price::Machine& machine) {
  return slowest_place(options.mesh, machine, causal_work(options));
}

}  // namespace tokamak
