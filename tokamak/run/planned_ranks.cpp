#include "tokamak/run/planned_ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "tokamak/plan/stage_twin.h"

namespace tokamak {
namespace {

// Returns what distinguishes inner ranks: how much each stage holds, where in the period of the
// recompute policy it begins, and whether it is next to the first or last stage, which may hold no
// layer and pass on the embedding's partial sums where no cut sums are wanted.
std::vector<int> kind_of(const RunShape& shape, const std::vector<int>& stages) {
  const DistributeOptions& d = shape.distribute;
  const bool has_period = shape.recompute.mode == RecomputePolicy::Mode::kSelectiveLayers;
  const int period = has_period ? shape.recompute.every_nth_block : 1;
  const auto& all = d.stage_of_module;
  std::vector<int> kind;
  for (const int stage : stages) {
    kind.push_back(static_cast<int>(std::ranges::count(all, stage)));
    kind.push_back(static_cast<int>(std::ranges::find(all, stage) - all.begin()) % period);
    kind.push_back(stage == 1 || stage + 2 == d.pipeline.num_stages() ? stage : 0);
  }
  return kind;
}

// Whether ranks of tp have equal parts of everything that tp cuts.
bool cuts_evenly(const ModelSpec& model, int tp) {
  const auto divides = [&](int64_t n) { return n % tp == 0; };
  return divides(model.num_heads) && divides(model.num_kv_heads) && divides(model.vocab_size) &&
         divides(model.mlp_dim);
}

bool cost_the_same(const Task& a, const Task& b) {
  const auto are_alike = [](const std::vector<Operand>& x, const std::vector<Operand>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const Operand& p, const Operand& q) {
                        return p.arena == q.arena && p.type == q.type && p.strides == q.strides;
                      });
  };
  if (a.rules != b.rules || a.variant != b.variant || a.accumulate != b.accumulate ||
      a.stream != b.stream || a.waits != b.waits || a.when != b.when || a.is_clone != b.is_clone ||
      a.label.phase != b.label.phase || a.label.block != b.label.block || !are_alike(a.in, b.in) ||
      !are_alike(a.out, b.out))
    return false;
  return !a.rules->is_communication ||
         a.rules->group(a.op.get()).id == b.rules->group(b.op.get()).id;
}

// Whether two ranks of a stage with equal batches cost the same, wherever their ops' operands lie
// in buckets and groups.
bool cost_the_same(const Plan& a, const Plan& b) {
  return a.arena_bytes == b.arena_bytes &&
         std::equal(a.segments.begin(), a.segments.end(), b.segments.begin(), b.segments.end(),
                    [](const Segment& x, const Segment& y) {
                      return std::equal(
                          x.tasks.begin(), x.tasks.end(), y.tasks.begin(), y.tasks.end(),
                          [](const Task& t, const Task& u) { return cost_the_same(t, u); });
                    });
}

// Returns the groups of rank `from` moved to `to`, which does the same: coordinates in which a
// group's members differ stay, the others become those of `to`. Returns nothing if a group covers
// only a part of an axis on which the two ranks differ.
std::optional<GroupTable> moved_groups(GroupTable groups, const Mesh& mesh, int from, int to) {
  const MeshCoordinates at_from = mesh.coordinates(from);
  const MeshCoordinates at_to = mesh.coordinates(to);
  for (GroupTable::Entry& group : groups.entries) {
    if (std::ssize(group.ranks) == mesh.size()) continue;
    std::vector<MeshCoordinates> members;
    for (const int rank : group.ranks) members.push_back(mesh.coordinates(rank));
    for (size_t a = 0; a < kNumMeshAxes; ++a) {
      if (at_from[a] == at_to[a]) continue;
      std::set<int> seen;
      for (const MeshCoordinates& at : members) seen.insert(at[a]);
      if (std::ssize(seen) == mesh.degrees[a]) continue;
      if (seen.size() > 1) return std::nullopt;
      for (MeshCoordinates& at : members) at[a] = at_to[a];
    }
    for (size_t m = 0; m < members.size(); ++m) group.ranks[m] = mesh.rank_of(members[m]);
  }
  return groups;
}

// The gradient norm's partial sums take a few more bytes where a rank's slices begin within
// tensors. If that scratch is near the plan's peak, ranks need their own plans.
bool may_differ_in_memory(const Plan& plan) {
  int64_t most = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.runs == Segment::Runs::kOnceAfter) most = std::max(most, scratch_bytes(segment));
  }
  return 2 * most > plan.arena_bytes[ArenaKind::kScratch];
}

}  // namespace

std::optional<int> uneven_tp_rank(const ModelSpec& model, const Mesh& mesh) {
  const int tp = mesh.degree(MeshAxis::kTp);
  if (model.vocab_size % tp == 0) return std::nullopt;
  MeshCoordinates last{};
  last[MeshAxis::kTp] = tp - 1;
  return mesh.rank_of(last);
}

int64_t PlannedRanks::Rank::peak_bytes() const {
  return tokamak::peak_bytes(*plan, validation);
}

// Plans ranks into a PlannedRanks.
class PlannedRanks::Planner {
 public:
  struct Request {
    const ModelSpec& model;
    RunShape shape;
    const Target& target;
    bool takes_twins = true;
    int num_wanted = 0;
    const Progress& progress;
  };

  Planner(PlannedRanks& out, Request request)
      : out_(out),
        request_(std::move(request)),
        whole_(request_.model, request_.shape, request_.target),
        num_stages_(mesh().degree(MeshAxis::kPp)),
        ranks_per_stage_(mesh().size() / num_stages_),
        tp_is_even_(cuts_evenly(request_.model, mesh().degree(MeshAxis::kTp))) {}

  int num_stages() const { return num_stages_; }

  int ranks_per_stage() const { return ranks_per_stage_; }

  Rank own(int rank) {
    request_.shape.distribute.rank = rank;
    out_.runs_.push_back(
        std::make_unique<PlannedRun>(request_.model, request_.shape, request_.target, whole_));
    const Plan& plan = out_.runs_.back()->plan();
    return {.rank = rank,
            .plan = &plan,
            .validation = out_.runs_.back()->validation_plan(),
            .groups = &plan.groups};
  }

  // Returns the rank at a place of a stage: planned itself, or the twin of the same place in
  // another stage.
  Rank at_place(int at, int place) {
    tell();
    const int rank = at * ranks_per_stage_ + place;
    const bool has_both_neighbours = at > 0 && at + 1 < num_stages_;
    if (!request_.takes_twins || !has_both_neighbours) return own(rank);
    const auto kind = kind_of(request_.shape, pipeline().stages_of(at));
    const auto like = firsts_.find({kind, place});
    if (like != firsts_.end()) return stage_twin(like->second, at);
    return firsts_.emplace(std::pair(kind, place), First{.at = at, .rank = own(rank)})
        .first->second.rank;
  }

  // Returns all ranks of a stage. Ranks that differ in dp_shard own other slices of the same
  // buckets, and the last slices may be only padding: if two ranks do the same, those between them
  // do too.
  std::vector<Rank> all_of(int at) {
    std::vector<std::optional<Rank>> ranks(ranks_per_stage_);
    for (int place = 0; place < ranks_per_stage_; ++place) {
      MeshCoordinates c = mesh().coordinates(place);
      if (!request_.takes_twins) ranks[place] = at_place(at, place);
      if (!request_.takes_twins || like_place(place) != place || c[kShard] != 0) continue;
      std::vector<int> line;
      for (c[kShard] = 0; c[kShard] < mesh().degrees[kShard]; ++c[kShard])
        line.push_back(mesh().rank_of(c));
      plan_line(at, line, ranks);
    }
    std::vector<Rank> all;
    for (int place = 0; place < ranks_per_stage_; ++place) {
      const auto& like = ranks[like_place(place)];
      const auto& own = ranks[place];
      all.push_back(own ? *own : shared(*like, at, place));
    }
    return all;
  }

 private:
  static constexpr auto kShard = static_cast<size_t>(MeshAxis::kDpShard);

  // The first planned rank of its kind.
  struct First {
    int at = 0;
    Rank rank;
  };

  const Mesh& mesh() const { return request_.shape.distribute.mesh; }

  const PipelineSchedule& pipeline() const { return request_.shape.distribute.pipeline; }

  int receives_ahead() const { return request_.shape.distribute.receives_ahead; }

  void tell() {
    if (request_.progress) request_.progress("ranks planned", ++num_done_, request_.num_wanted);
  }

  // Returns the first place whose rank does the same whatever it owns: replicas do, and ranks of tp
  // where everything is cut evenly; ranks of cp have attention of other shapes.
  int like_place(int place) const {
    if (!request_.takes_twins) return place;
    MeshCoordinates at = mesh().coordinates(place);
    at[MeshAxis::kDpReplicate] = 0;
    if (tp_is_even_) at[MeshAxis::kTp] = 0;
    return mesh().rank_of(at);
  }

  void plan_line(int at, std::span<const int> line, std::vector<std::optional<Rank>>& ranks) {
    const auto of = [&](int place) -> std::optional<Rank>& { return ranks[place]; };
    for (const int place : {line.front(), line.back()}) {
      if (!of(place)) of(place) = at_place(at, place);
    }
    if (line.size() < 3) return;
    if (!cost_the_same(*of(line.front())->plan, *of(line.back())->plan)) {
      const size_t middle = line.size() / 2;
      plan_line(at, line.first(middle + 1), ranks);
      plan_line(at, line.subspan(middle), ranks);
      return;
    }
    for (const int place : line.subspan(1, line.size() - 2))
      of(place) = shared(*of(line.front()), at, place);
  }

  // Returns the rank at `place` with the plan of a rank that does the same.
  Rank shared(const Rank& from, int at, int place) {
    const int rank = at * ranks_per_stage_ + place;
    std::optional<GroupTable> groups;
    if (!may_differ_in_memory(*from.plan))
      groups = moved_groups(*from.groups, mesh(), from.rank, rank);
    if (!groups) return at_place(at, place);
    tell();
    out_.groups_.push_back(std::make_unique<GroupTable>(std::move(*groups)));
    return {.rank = rank,
            .plan = from.plan,
            .validation = from.validation,
            .groups = out_.groups_.back().get()};
  }

  Rank stage_twin(const First& from, int at) {
    out_.twins_.push_back(std::make_unique<Plan>(
        twin_of(*from.rank.plan, {.from = from.at,
                                  .to = at,
                                  .ranks_per_stage = ranks_per_stage_,
                                  .stages_from = pipeline().stages_of(from.at),
                                  .stages_to = pipeline().stages_of(at),
                                  .items = lower_schedule(pipeline(), at, receives_ahead()),
                                  .rates = request_.target.rates})));
    const Plan& plan = *out_.twins_.back();
    return {.rank = from.rank.rank + (at - from.at) * ranks_per_stage_,
            .plan = &plan,
            .validation = from.rank.validation,
            .groups = &plan.groups};
  }

  PlannedRanks& out_;
  Request request_;
  WholeGraphs whole_;
  int num_stages_ = 1;
  int ranks_per_stage_ = 1;
  bool tp_is_even_ = true;
  int num_done_ = 0;
  std::map<std::pair<std::vector<int>, int>, First> firsts_;  // by kind and place
};

PlannedRanks::PlannedRanks(const ModelSpec& model, RunShape shape, const Target& target,
                           Which which, int place, const Progress& progress) {
  const bool is_every_rank = which == Which::kAll || which == Which::kOwnAll;
  const Mesh mesh = shape.distribute.mesh;
  Planner planner(*this, {.model = model,
                          .shape = std::move(shape),
                          .target = target,
                          .takes_twins = which == Which::kStages || which == Which::kAll,
                          .num_wanted = is_every_rank ? mesh.size() : mesh.degree(MeshAxis::kPp),
                          .progress = progress});
  if (!is_every_rank) {
    if (const std::optional<int> uneven = uneven_tp_rank(model, mesh)) {
      for (const int at : std::set{0, planner.num_stages() - 1})
        others_.push_back(planner.own(at * planner.ranks_per_stage() + *uneven));
    }
  }
  for (int at = 0; at < planner.num_stages(); ++at) {
    if (!is_every_rank) {
      ranks_.push_back(planner.at_place(at, place));
      continue;
    }
    for (const Rank& rank : planner.all_of(at)) ranks_.push_back(rank);
  }
}

const PlannedRanks::Rank& PlannedRanks::fullest() const {
  const Rank* fullest = &ranks_.front();
  for (const auto* ranks : {&ranks_, &others_}) {
    for (const Rank& rank : *ranks) {
      if (rank.peak_bytes() > fullest->peak_bytes()) fullest = &rank;
    }
  }
  return *fullest;
}

}  // namespace tokamak
