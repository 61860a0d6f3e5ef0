#include "tokamak/price/step/step_estimate.h"

#include <algorithm>
#include <map>

#include "tokamak/price/step/stream_loop.h"

namespace tokamak::price {
namespace {

using Kind = PipelineItemKind;

enum Stream : int { kCompute, kGather, kReduce, kFirstMessage };

// A layer, the embedding or the head of a stage.
struct Part {
  StageModules modules;
  const BucketSeconds* bucket = nullptr;
};

// Returns parts in the order of a forward.
std::vector<Part> parts_of(const StageModules& stage, const Buckets& buckets) {
  std::vector<Part> parts;
  if (stage.has_embedding) parts.push_back({{.has_embedding = true}, &buckets.embedding});
  parts.insert(parts.end(), static_cast<size_t>(stage.layers), {{.layers = 1}, &buckets.layer});
  if (stage.has_head) parts.push_back({{.has_head = true}, &buckets.head});
  return parts;
}

// Returns the seconds of the sums between the last reduction and the optimizer: the gradients of a
// tied table whose ends lie on two ranks, and the norm.
double sums_s(const PipelineShape& shape, const DataSpread& spread) {
  const bool is_apart = shape.rank_of_stage.front() != shape.rank_of_stage.back();
  return spread.norm_s + (is_apart ? spread.tie_s : 0.0);
}

// Adds one rank's Works.
class Works {
 public:
  Works(int stage_link, const Buckets& buckets, const Software& software)
      : stage_link_(stage_link), buckets_(buckets), software_(software) {}

  int add(Work work, const std::vector<int>& after = {}) {
    const int w = works_.add(work, after);
    if (work.stream == kCompute) foreground_ = w;
    return w;
  }

  void add_whole(double seconds, double held_factor, const std::vector<int>& after) {
    add({.seconds = seconds, .is_whole_item = true, .held_factor = held_factor, .stream = kCompute},
        after);
  }

  int add_gather(const Part& part, const std::vector<int>& after) {
    return add({.seconds = part.bucket->gather_s,
                .category = Category::kExposedComm,
                .is_shared = true,
                .stream = kGather,
                .link = buckets_.shard_link},
               after);
  }

  void add_encoding(double seconds, const std::vector<int>& after) {
    if (seconds > 0.0) add({.seconds = seconds, .is_shared = true, .stream = kCompute}, after);
  }

  void wait_for(const std::vector<int>& works) { add({.stream = kCompute}, works); }

  // Adds kernels and collectives of one part, alternating a few times.
  void add_part(const Part& part, bool is_first, const StageSum& all, const PassSeconds& pass,
                std::vector<int> after) {
    constexpr int kTurns = 4;
    const auto of = [&](const StageSum& sum) {
      return sum(part.modules) - (is_first ? 0.0 : sum.base);
    };
    const double all_s = of(all);
    const double communication_s = of(pass.communication);
    const double kernels_s = all_s - communication_s;
    // Messages slow only kernels.
    const double held = kernels_s > 0.0 ? (pass.held_factor - 1.0) * all_s / kernels_s : 0.0;
    for (int turn = 0; turn < kTurns; ++turn) {
      add({.seconds = kernels_s / kTurns,
           .is_shared = true,
           .held_factor = 1.0 + held,
           .stream = kCompute},
          after);
      after.clear();
      if (communication_s <= 0.0) continue;
      add({.seconds = communication_s / kTurns,
           .category = Category::kExposedComm,
           .is_shared = true,
           .stream = kCompute,
           .link = stage_link_});
    }
  }

  // Adds the reductions of the part that was added last.
  void add_reductions(const Part& part) {
    const auto add_one = [&](double seconds, int link) {
      if (seconds <= 0.0) return;
      reduced_ = add({.seconds = seconds,
                      .category = Category::kExposedComm,
                      .is_shared = true,
                      .stream = kReduce,
                      .link = link},
                     {foreground_});
    };
    add_one(part.bucket->scatter_s, buckets_.shard_link);
    add_one(part.bucket->replica_s, buckets_.replica_link);
  }

  // Makes the next item wait for reductions that do not outlive their item.
  void end_item() {
    if (software_.reduction_overlap == 0 && reduced_ >= 0) wait_for({reduced_});
  }

  // Adds what all ranks sum last, then the optimizer.
  void add_update(const StageModules& all, double sums_s, int meeting, std::vector<int> after) {
    if (reduced_ >= 0) after.push_back(reduced_);
    add({.seconds = sums_s,
         .category = Category::kExposedComm,
         .stream = kCompute,
         .meeting = meeting},
        after);
    add({.seconds = buckets_.sum(all, &BucketSeconds::update_s),
         .category = Category::kOptimizer,
         .stream = kCompute});
  }

  int foreground() const { return foreground_; }

  RankWorks take() { return std::move(works_); }

 private:
  int stage_link_;
  const Buckets& buckets_;
  const Software& software_;
  RankWorks works_;
  int foreground_ = -1;  // the last work of the compute stream
  int reduced_ = -1;     // the last reduction
};

// Numbers meetings: those of the messages of each direction, stage and microbatch, then of all
// ranks.
class Meetings {
 public:
  Meetings(const PipelineShape& shape, const ItemLists& lists)
      : num_stages_(static_cast<int>(shape.stages.size())),
        num_microbatches_(lists.num_microbatches),
        sizes_(static_cast<size_t>(2 * num_stages_ * num_microbatches_), 2) {
    sizes_.push_back(shape.num_ranks);
  }

  int message(bool is_forward, int from_stage, int microbatch) const {
    return ((is_forward ? 0 : num_stages_) + from_stage) * num_microbatches_ + microbatch;
  }

  int of_all() const { return static_cast<int>(sizes_.size()) - 1; }

  const std::vector<int>& sizes() const { return sizes_; }

 private:
  int num_stages_;
  int num_microbatches_;
  std::vector<int> sizes_;
};

// Adds the items of one rank, and what data parallelism does at both ends of the step.
class RankItems {
 public:
  RankItems(const StageSeconds& seconds, const PipelineShape& shape, const DataSpread& spread,
            const Buckets& buckets, const Software& software, const Meetings& meetings, int rank)
      : seconds_(seconds),
        shape_(shape),
        spread_(spread),
        buckets_(buckets),
        software_(software),
        meetings_(meetings),
        rank_(rank),
        works_(seconds.link, buckets, software),
        received_(meetings.sizes().size(), -1) {}

  RankWorks run(const std::vector<PipelineItem>& items) {
    const size_t num_stages = shape_.stages.size();
    std::vector<size_t> last(num_stages);  // by stage: its last item, which makes gradients
    for (size_t i = 0; i < items.size(); ++i) {
      if (!is_message(items[i].kind)) last[items[i].stage] = i;
    }
    gather();
    for (size_t i = 0; i < items.size(); ++i) {
      if (is_message(items[i].kind)) {
        add_message(items[i]);
      } else {
        add_computation(items[i], last[items[i].stage] == i);
      }
    }
    std::vector<int> gathers;
    for (const auto& [stage, works] : gathered_)
      gathers.insert(gathers.end(), works.begin(), works.end());
    works_.add_update(shape_.modules_of[rank_], sums_s(shape_, spread_), meetings_.of_all(),
                      gathers);
    return works_.take();
  }

 private:
  // Gathers weights once a step, before all items or beside them, and makes codes of them, before
  // that of slices or after it of whole weights.
  void gather() {
    if (spread_.groups.empty()) return;  // of the items alone
    const bool gathers = spread_.owners > 1;
    const bool of_slices = gathers && seconds_.encodes_slices;
    std::vector<int> encoded;
    if (of_slices) {
      works_.add_encoding(seconds_.encode(shape_.modules_of[rank_]) / spread_.owners, {});
      if (works_.foreground() >= 0) encoded.push_back(works_.foreground());
    }
    std::vector<int> all;
    for (const int stage : shape_.stages_of[rank_]) {
      for (const Part& part : parts_of(shape_.stages[stage], buckets_)) {
        std::vector<int> after;
        if (gathers) {
          all.push_back(works_.add_gather(part, encoded));
          after.push_back(all.back());
          if (gathers_beside()) gathered_[stage].push_back(all.back());
        }
        if (!of_slices) works_.add_encoding(seconds_.encode(part.modules), after);
      }
    }
    if (gathers && !gathers_beside()) works_.wait_for(all);
  }

  bool gathers_beside() const { return software_.gather_overlap != 0 || shape_.overlaps_gathers; }

  double hop_s(int peer) const {
    const bool is_next = (rank_ + 1) % shape_.num_ranks == peer;
    return spread_.hops_s[is_next ? rank_ : peer];
  }

  void add_message(const PipelineItem& item) {
    const bool is_forward = item.kind == Kind::kSendForward || item.kind == Kind::kRecvForward;
    const bool sends = is_send(item.kind);
    const int from = sends ? item.stage : item.stage + (is_forward ? -1 : 1);
    const int stream =
        streams_.try_emplace({item.peer_rank, sends}, kFirstMessage + std::ssize(streams_))
            .first->second;
    const int meeting = meetings_.message(is_forward, from, item.microbatch);
    std::vector<int> after;
    if (works_.foreground() >= 0) after.push_back(works_.foreground());
    const int work = works_.add({.seconds = hop_s(item.peer_rank),
                                 .category = Category::kExposedComm,
                                 .holds = true,
                                 .stream = stream,
                                 .meeting = meeting},
                                after);
    if (!sends) received_[meeting] = work;
  }

  void add_computation(const PipelineItem& item, bool is_last) {
    const bool is_forward = item.kind == Kind::kForward;
    const bool is_first = item.microbatch == 0;
    const PassSeconds& pass = is_forward                           ? seconds_.forward
                              : item.kind == Kind::kBackwardWeight ? seconds_.weight
                                                                   : seconds_.backward;
    std::vector<int> after;
    const int from = item.stage + (is_forward ? -1 : 1);
    if (item.kind != Kind::kBackwardWeight && from >= 0 && from < std::ssize(shape_.stages)) {
      const int received = received_[meetings_.message(is_forward, from, item.microbatch)];
      if (received >= 0) after.push_back(received);
    }
    const StageModules& stage = shape_.stages[item.stage];
    const bool reduces = is_last && (spread_.owners > 1 || spread_.replicas > 1);
    const auto gathered = gathered_.find(item.stage);
    const bool waits = is_forward && is_first && gathered != gathered_.end();
    const StageSum& all = pass.of(is_first);
    if (!waits && !reduces) return works_.add_whole(all(stage), pass.held_factor, after);
    std::vector<Part> parts = parts_of(stage, buckets_);
    if (reduces) std::reverse(parts.begin(), parts.end());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (waits) after.push_back(gathered->second[i]);
      works_.add_part(parts[i], i == 0, all, pass, after);
      after.clear();
      if (reduces) works_.add_reductions(parts[i]);
    }
    works_.end_item();
  }

  const StageSeconds& seconds_;
  const PipelineShape& shape_;
  const DataSpread& spread_;
  const Buckets& buckets_;
  const Software& software_;
  const Meetings& meetings_;
  int rank_;
  Works works_;
  std::map<std::pair<int, bool>, int> streams_;  // by peer, and whether to it
  std::vector<int> received_;                    // by meeting; -1 = none
  std::map<int, std::vector<int>> gathered_;     // by stage: what its first forward awaits
};

std::vector<Buckets> buckets_by_groups(const StageCosts& costs, const DataSpread& spread,
                                       const Machine& machine) {
  std::vector<Buckets> buckets;
  for (const DataSpread::Groups& groups : spread.groups)
    buckets.push_back(buckets_of(costs, spread, groups, machine));
  return buckets;
}

double seconds_of(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                  const std::vector<Buckets>& buckets, const Machine& machine) {
  const auto seconds_of = [&](const ItemLists& lists) {
    const Meetings meetings(shape, lists);
    std::vector<RankWorks> ranks;
    for (int r = 0; r < shape.num_ranks; ++r) {
      RankItems items(costs.places[spread.places[r]], shape, spread, buckets[spread.groups_at(r)],
                      machine.software, meetings, r);
      ranks.push_back(items.run(lists.of_rank[r]));
    }
    double seconds = 0.0;
    for (const RankTimes& times :
         run_streams(ranks, meetings.sizes(), slowdown_of(machine.software)))
      seconds = std::max(seconds, times.last_s);
    return seconds;
  };
  double seconds = seconds_of(shape.items);
  if (shape.shorter.num_microbatches > 0) {
    const int round = shape.items.num_microbatches - shape.shorter.num_microbatches;
    seconds += (seconds - seconds_of(shape.shorter)) / round *
               (shape.num_microbatches - shape.items.num_microbatches);
  }
  return seconds + machine.software.step_overhead_s;
}

}  // namespace

double estimate_pipeline(const StageCosts& costs, const PipelineShape& shape,
                         const DataSpread& spread, const Machine& machine) {
  return seconds_of(costs, shape, spread, buckets_by_groups(costs, spread, machine), machine);
}

double estimate_items(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                      const Machine& machine) {
  const DataSpread alone{.places = spread.places, .hops_s = spread.hops_s};
  return seconds_of(costs, shape, alone, {{}}, machine);
}

double least_of_ends(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                     const Machine& machine) {
  const std::vector<Buckets> buckets = buckets_by_groups(costs, spread, machine);
  double update_s = 0.0;
  for (int r = 0; r < shape.num_ranks; ++r) {
    update_s = std::max(
        update_s, buckets[spread.groups_at(r)].sum(shape.modules_of[r], &BucketSeconds::update_s));
  }
  // The first forward waits for all gathers of its rank, and the update for the last reduction.
  const Buckets& first = buckets.front();
  const double gather_s = machine.software.gather_overlap == 0 && !shape.overlaps_gathers
                              ? first.sum(shape.modules_of.front(), &BucketSeconds::gather_s)
                              : first.embedding.gather_s;
  double reduce_s = first.layer.scatter_s + first.layer.replica_s;
  for (const Buckets& b : buckets) {
    for (const BucketSeconds* part : {&b.layer, &b.embedding, &b.head})
      reduce_s = std::min(reduce_s, part->scatter_s + part->replica_s);
  }
  return gather_s + reduce_s + sums_s(shape, spread) + update_s;
}

}  // namespace tokamak::price
