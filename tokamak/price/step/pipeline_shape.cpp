#include "tokamak/price/step/pipeline_shape.h"

#include <algorithm>
#include <map>
#include <set>

#include "tokamak/core/error.h"
#include "tokamak/pipeline/schedules.h"
#include "tokamak/plan/segments.h"

namespace tokamak::price {
namespace {

using Kind = PipelineItemKind;

// Beyond so many microbatches a schedule only repeats itself: for each rank, and at least.
constexpr int kRepeatsAfter = 3;
constexpr int kLeastRepeatsAfter = 48;

// All that a stage may hold; kBackwardInput stands for a backward that is not split.
constexpr HeldKind kHeldKinds[] = {
    {Kind::kRecvForward, Kind::kForward},        {Kind::kRecvForward, Kind::kBackwardInput},
    {Kind::kRecvForward, Kind::kBackwardWeight}, {Kind::kForward, Kind::kBackwardInput},
    {Kind::kForward, Kind::kBackwardWeight},     {Kind::kForward, Kind::kSendForward},
    {Kind::kRecvBackward, Kind::kBackwardInput}, {Kind::kRecvBackward, Kind::kBackwardWeight},
    {Kind::kBackwardInput, Kind::kSendBackward}, {Kind::kBackwardInput, Kind::kBackwardWeight},
};

// A rank's plan without tasks: segments, items and classes of slots.
struct Skeleton {
  Plan plan;
  std::vector<std::pair<int, HeldKind>> classes;  // by slot class: stage
};

class SkeletonMaker {
 public:
  SkeletonMaker(const PipelineShape& shape, int rank) : shape_(shape), rank_(rank) {}

  Skeleton run(const std::vector<PipelineItem>& items) {
    const std::vector<int>& stages = shape_.stages_of[rank_];
    for (const int s : stages) {
      if (is_elsewhere(s - 1)) add(Kind::kRecvForward, s);
      add(Kind::kForward, s);
      if (is_elsewhere(s + 1)) add(Kind::kSendForward, s);
    }
    for (auto s = stages.rbegin(); s != stages.rend(); ++s) {
      if (is_elsewhere(*s + 1)) add(Kind::kRecvBackward, *s);
      add(Kind::kBackwardInput, *s);
      if (is_elsewhere(*s - 1)) add(Kind::kSendBackward, *s);
      if (shape_.is_split) add(Kind::kBackwardWeight, *s);
    }
    for (const int s : stages) {
      for (const HeldKind& kind : kHeldKinds) add_class(s, kind);
    }
    made_.plan.items = pipeline_items(made_.plan.segments, items);
    wait_for_readers(made_.plan);
    return std::move(made_);
  }

 private:
  bool is_elsewhere(int stage) const {
    return stage >= 0 && stage < std::ssize(shape_.stages) && shape_.rank_of_stage[stage] != rank_;
  }

  // Messages of two ranks in one direction share a stream.
  int stream_of(Kind kind, int stage) const {
    const bool has_next = kind == Kind::kSendForward || kind == Kind::kRecvBackward;
    const bool is_send = kind == Kind::kSendForward || kind == Kind::kSendBackward;
    const int peer = shape_.rank_of_stage[has_next ? stage + 1 : stage - 1];
    return 1 + 2 * peer + (is_send ? 1 : 0);
  }

  void add(Kind kind, int stage) {
    const PipelinePoint point{kind, stage};
    index_[point] = static_cast<int>(made_.plan.segments.size());
    Segment segment{.name = segment_name(point),
                    .runs = Segment::Runs::kPerMicrobatch,
                    .point = point,
                    .tasks = {},
                    .is_background = is_message(kind)};
    segment.tasks.push_back({.stream = is_message(kind) ? stream_of(kind, stage) : 0});
    made_.plan.segments.push_back(std::move(segment));
  }

  // Between stages of one rank no message runs: the forward and the backward hand over.
  void add_class(int stage, const HeldKind& kind) {
    int from_stage = stage;
    HeldKind real = kind;
    if (kind.from == Kind::kRecvForward && stage > 0 && !is_elsewhere(stage - 1)) {
      from_stage = stage - 1;
      real.from = Kind::kForward;
    }
    if (kind.from == Kind::kRecvBackward && stage + 1 < std::ssize(shape_.stages) &&
        !is_elsewhere(stage + 1)) {
      from_stage = stage + 1;
      real.from = Kind::kBackwardInput;
    }
    const auto from = index_.find({real.from, from_stage});
    const auto to = index_.find({real.to, stage});
    if (from == index_.end() || to == index_.end()) return;
    const int slot_class = static_cast<int>(made_.classes.size());
    made_.classes.emplace_back(stage, kind);
    made_.plan.slots.push_back({.first_segment = from->second, .last_segment = to->second});
    for (const int segment : {from->second, to->second}) {
      made_.plan.segments[segment].tasks[0].in.push_back(
          {.arena = ArenaKind::kSlot, .slot_class = slot_class});
    }
  }

  const PipelineShape& shape_;
  int rank_;
  std::map<PipelinePoint, int> index_;  // of segments
  Skeleton made_;
};

// Works of all ranks as a graph: an item that computes, or a message, which is an item of two.
class PassMaker {
 public:
  PassMaker(const PipelineShape& shape, int num_microbatches)
      : shape_(shape),
        pass_{.num_stages = static_cast<int>(shape.stages.size()),
              .num_ranks = shape.num_ranks,
              .num_microbatches = num_microbatches} {}

  void add_rank(int rank, const Plan& plan, const std::vector<PipelineItem>& kinds) {
    std::vector<int32_t> works;  // by item
    std::map<std::pair<int, int>, int> count;
    int32_t foreground = -1;
    for (size_t i = 0; i < plan.items.size(); ++i) {
      const ScheduleItem& item = plan.items[i];
      const PipelineItem& what = kinds[i];
      const bool is_message = plan.segments[item.segment].is_background;
      int32_t work = 0;
      if (is_message) {
        const bool is_send = what.kind == Kind::kSendForward || what.kind == Kind::kSendBackward;
        const std::pair<int, int> ends =
            is_send ? std::pair(rank, what.peer_rank) : std::pair(what.peer_rank, rank);
        work = message(ends, count[ends]++);
      } else {
        work = add_work(duration_of(what, item));
      }
      works.push_back(work);
      if (foreground >= 0) need(work, foreground);
      for (const int w : item.waits) need(work, works[w]);
      if (!is_message) foreground = work;
    }
  }

  PipelinePass run() {
    const size_t n = duration_.size();
    std::vector<std::vector<int32_t>> users(n);
    std::vector<int> missing(n, 0);
    for (size_t w = 0; w < n; ++w) {
      missing[w] = static_cast<int>(needs_[w].size());
      for (const int32_t need : needs_[w]) users[need].push_back(static_cast<int32_t>(w));
    }
    std::vector<int32_t> order;
    for (size_t w = 0; w < n; ++w) {
      if (missing[w] == 0) order.push_back(static_cast<int32_t>(w));
    }
    for (size_t i = 0; i < order.size(); ++i) {
      for (const int32_t user : users[order[i]]) {
        if (--missing[user] == 0) order.push_back(user);
      }
    }
    TOK_CHECK(order.size() == n, "{}: {} of {} works wait for ever", shape_.schedule,
              n - order.size(), n);
    std::vector<int32_t> place(n);
    for (size_t i = 0; i < n; ++i) place[order[i]] = static_cast<int32_t>(i);
    for (const int32_t w : order) {
      pass_.duration.push_back(duration_[w]);
      pass_.first_need.push_back(static_cast<int32_t>(pass_.needs.size()));
      for (const int32_t need : needs_[w]) pass_.needs.push_back(place[need]);
    }
    pass_.first_need.push_back(static_cast<int32_t>(pass_.needs.size()));
    return std::move(pass_);
  }

 private:
  static int32_t duration_of(const PipelineItem& what, const ScheduleItem& item) {
    const StageWork work = what.kind == Kind::kForward          ? StageWork::kForward
                           : what.kind == Kind::kBackwardWeight ? StageWork::kWeight
                                                                : StageWork::kBackward;
    return PipelinePass::duration_index(what.stage, work, item.is_first, item.is_last);
  }

  int32_t add_work(int32_t duration) {
    duration_.push_back(duration);
    needs_.emplace_back();
    return static_cast<int32_t>(duration_.size()) - 1;
  }

  void need(int32_t work, int32_t other) { needs_[work].push_back(other); }

  // The nth message from rank to rank; it follows the one before.
  int32_t message(const std::pair<int, int>& ends, int n) {
    std::vector<int32_t>& all = messages_[ends];
    if (n == std::ssize(all)) {
      all.push_back(add_work(pass_.message_index(ends.first, ends.second)));
      if (n > 0) need(all.back(), all[static_cast<size_t>(n) - 1]);
    }
    return all[n];
  }

  const PipelineShape& shape_;
  PipelinePass pass_;
  std::vector<int32_t> duration_;
  std::vector<std::vector<int32_t>> needs_;
  std::map<std::pair<int, int>, std::vector<int32_t>> messages_;
};

// Items of a plan by what they are.
std::vector<PipelineItem> kinds_of(const Skeleton& skeleton, const PipelineShape& shape) {
  std::vector<PipelineItem> kinds;
  for (const ScheduleItem& item : skeleton.plan.items) {
    const Segment& segment = skeleton.plan.segments[item.segment];
    const auto [kind, stage] = segment.point.value();
    PipelineItem what{.kind = kind, .stage = stage, .microbatch = item.microbatch};
    const bool has_next = kind == Kind::kSendForward || kind == Kind::kRecvBackward;
    if (segment.is_background)
      what.peer_rank = shape.rank_of_stage[has_next ? stage + 1 : stage - 1];
    kinds.push_back(what);
  }
  return kinds;
}

// What is held when; points at which nothing is held that is not held at a neighbour, and points
// like others, say nothing about the most that is held.
std::vector<HeldValues> held_of(const Skeleton& skeleton) {
  const std::vector<SlotNeed> needs = slot_needs(skeleton.plan);
  const size_t num_points = needs.empty() ? 0 : needs[0].held.size();
  std::vector<std::vector<int>> points;
  for (size_t i = 0; i < num_points; ++i) {
    std::vector<int> point;
    point.reserve(needs.size());
    for (const SlotNeed& need : needs) point.push_back(need.held[i]);
    const auto covers = [](const std::vector<int>& a, const std::vector<int>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), std::greater_equal<>());
    };
    if (!points.empty() && covers(points.back(), point)) continue;
    while (!points.empty() && covers(point, points.back())) points.pop_back();
    points.push_back(std::move(point));
  }
  const std::set<std::vector<int>> kept(points.begin(), points.end());
  std::vector<HeldValues> values;
  for (size_t c = 0; c < needs.size(); ++c) {
    HeldValues& v = values.emplace_back();
    v.stage = skeleton.classes[c].first;
    v.kind = skeleton.classes[c].second;
    for (const auto& point : kept) v.held.push_back(point[c]);
  }
  return values;
}

PipelinePass make_pass(PipelineShape& shape, int num_microbatches, bool with_held) {
  const int p = shape.num_ranks;
  const int stages_per_rank = static_cast<int>(shape.stages.size()) / p;
  const PipelineSchedule schedule =
      make_schedule(shape.schedule, p, stages_per_rank, num_microbatches);
  const auto items = lower_schedules(schedule, 1);
  PassMaker maker(shape, num_microbatches);
  for (int r = 0; r < p; ++r) {
    const Skeleton skeleton = SkeletonMaker(shape, r).run(items[r]);
    maker.add_rank(r, skeleton.plan, kinds_of(skeleton, shape));
    if (with_held) shape.held.push_back(held_of(skeleton));
  }
  return maker.run();
}

}  // namespace

PipelineShape pipeline_outline(const std::string& name, int num_ranks,
                               std::vector<StageModules> stages, int num_microbatches) {
  const int p = num_ranks;
  const int stages_per_rank = static_cast<int>(stages.size()) / p;
  PipelineShape shape{.schedule = name,
                      .num_ranks = p,
                      .num_microbatches = num_microbatches,
                      .stages = std::move(stages)};
  const PipelineSchedule schedule = make_schedule(
      name, p, stages_per_rank, std::min(num_microbatches, 2 * p + num_microbatches % p));
  shape.rank_of_stage = schedule.rank_of_stage;
  shape.stages_of.resize(p);
  shape.modules_of.resize(p);
  for (int s = 0; s < std::ssize(shape.stages); ++s) {
    const auto rank = static_cast<size_t>(shape.rank_of_stage[s]);
    shape.stages_of[rank].push_back(s);
    StageModules& all = shape.modules_of[rank];
    const StageModules& stage = shape.stages[s];
    all.layers += stage.layers;
    all.has_embedding |= stage.has_embedding;
    all.has_head |= stage.has_head;
  }
  shape.is_split = schedule.splits_backward();
  shape.in_flight = chunks_in_flight(schedule);
  return shape;
}

void add_schedule(PipelineShape& shape) {
  const int p = shape.num_ranks;
  const int m = shape.num_microbatches;
  const int longest = std::max(kRepeatsAfter, (kLeastRepeatsAfter + p - 1) / p) * p + m % p;
  shape.pass = make_pass(shape, std::min(m, longest), true);
  if (m > longest) shape.shorter = make_pass(shape, longest - p, false);
}

}  // namespace tokamak::price
