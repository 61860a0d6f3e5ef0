#include "tokamak/plan/segments.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Kind = PipelineItemKind;
using Runs = Segment::Runs;

// Communication without inputs receives; communication without outputs sends.
Kind kind_of(const Node& node) {
  const bool is_message = node.rules->is_communication && node.rules->has_side_effect;
  if (is_message && node.label.phase == Phase::kForward)
    return node.out.empty() ? Kind::kSendForward : Kind::kRecvForward;
  if (is_message) return node.out.empty() ? Kind::kSendBackward : Kind::kRecvBackward;
  if (node.label.phase == Phase::kForward) return Kind::kForward;
  return node.label.phase == Phase::kBackward ? Kind::kBackwardInput : Kind::kBackwardWeight;
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
    case Kind::kBackwardInput:
      return "backward";
    case Kind::kBackwardWeight:
      return "weight gradients";
    case Kind::kSendForward:
      return "send forward";
    case Kind::kRecvForward:
      return "receive forward";
    case Kind::kSendBackward:
      return "send backward";
    case Kind::kRecvBackward:
      return "receive backward";
  }
  return "?";
}

// Makes the items of a step and knows which receives are still to be waited for.
class ItemMaker {
 public:
  explicit ItemMaker(std::span<const Segment> segments) : segments_(segments) {
    for (size_t s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      if (segment.point) index_[*segment.point] = static_cast<int>(s);
      if (segment.joined)
        joined_[{segment.joined->forward, segment.joined->weight}] = static_cast<int>(s);
    }
  }

  void run_once(Runs when) {
    for (size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].runs != when) continue;
      if (const auto stage = segments_[s].before_stage) {
        before_stage_[*stage] = static_cast<int>(s);
      } else {
        made_.push_back({.segment = static_cast<int>(s)});
      }
    }
  }

  void run(Kind kind, const PipelineItem& item) {
    const auto it = index_.find({kind, item.stage});
    if (it == index_.end()) return;
    if (const auto before = before_stage_.find(item.stage);
        kind == Kind::kForward && before != before_stage_.end()) {
      made_.push_back({.segment = before->second});
      before_stage_.erase(before);
    }
    add(kind, item, {.segment = it->second, .microbatch = item.microbatch});
  }

  /// Returns the segment that runs this forward with what this backward has left, or -1.
  int joined(const PipelineItem& forward, const PipelineItem& backward) const {
    const auto f = index_.find({Kind::kForward, forward.stage});
    const auto w = index_.find({Kind::kBackwardWeight, backward.stage});
    if (f == index_.end() || w == index_.end()) return -1;
    const auto it = joined_.find({f->second, w->second});
    return it == joined_.end() ? -1 : it->second;
  }

  void run_joined(const PipelineItem& forward, const PipelineItem& backward) {
    add(Kind::kForward, forward,
        {.segment = joined(forward, backward),
         .microbatch = forward.microbatch,
         .left_microbatch = backward.microbatch});
  }

  // A joined segment runs neither the first nor the last microbatch of a stage.
  std::vector<ScheduleItem> finish() {
    std::map<int, int> last;
    for (size_t i = 0; i < made_.size(); ++i) {
      if (segments_[made_[i].segment].joined) {
        made_[i].is_first = made_[i].is_last = false;
        continue;
      }
      made_[i].is_first = !last.contains(made_[i].segment);
      made_[i].is_last = false;
      last[made_[i].segment] = static_cast<int>(i);
    }
    for (const auto& [segment, i] : last) made_[i].is_last = true;
    return std::move(made_);
  }

 private:
  void add(Kind kind, const PipelineItem& item, ScheduleItem next) {
    const auto here = static_cast<int>(made_.size());
    if (kind == Kind::kRecvForward || kind == Kind::kRecvBackward) {
      pending_[{kind == Kind::kRecvForward, item.stage, item.microbatch}] = here;
    } else if (!is_message(kind)) {
      const auto receive = pending_.find({kind == Kind::kForward, item.stage, item.microbatch});
      if (receive != pending_.end()) {
        next.waits.push_back(receive->second);
        pending_.erase(receive);
      }
    }
    made_.push_back(std::move(next));
  }

  std::span<const Segment> segments_;
  std::map<PipelinePoint, int> index_;
  std::map<std::pair<int, int>, int> joined_;  // by forward and weight gradients
  std::map<int, int> before_stage_;            // segments that still have to run
  std::vector<ScheduleItem> made_;
  std::map<std::tuple<bool, int, int>, int> pending_;  // receives by direction, stage, microbatch
};

}  // namespace

std::vector<SegmentNodes> cut_segments(const Graph& graph, bool split_backward) {
  std::vector<SegmentNodes> all{{.name = "unshard", .runs = Runs::kOnceBefore, .nodes = {}}};
  all.push_back({.name = split_backward ? "forward" : "microbatch",
                 .runs = Runs::kPerMicrobatch,
                 .nodes = {}});
  if (split_backward)
    all.push_back({.name = "backward", .runs = Runs::kPerMicrobatch, .nodes = {}});
  all.push_back({.name = "update", .runs = Runs::kOnceAfter, .nodes = {}});
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    size_t segment = 0;
    if (node.label.phase == Phase::kForward) segment = 1;
    if (node.label.phase == Phase::kBackward) segment = split_backward ? 2 : 1;
    if (node.label.phase == Phase::kUpdate) segment = all.size() - 1;
    all[segment].nodes.push_back(i);
  }
  std::erase_if(all, [](const SegmentNodes& s) { return s.nodes.empty(); });
  return all;
}

namespace {

// Cuts what a stage runs once before into what its last gathers read, these gathers, and what is
// computed from what they bring. Views go with what they view.
std::vector<SegmentNodes> cut_unshard(const Graph& graph, int stage,
                                      const std::vector<int32_t>& nodes) {
  std::set<int32_t> leads;  // to communication of this stage
  for (auto i = nodes.rbegin(); i != nodes.rend(); ++i) {
    const Node& node = graph.node(*i);
    if (!node.rules->is_communication && !leads.contains(*i)) continue;
    for_each_use(node, [&](Value v) { leads.insert(v.node); });
  }
  SegmentNodes before{.name = fmt::format("unshard {}", stage)};
  SegmentNodes gathers{.name = fmt::format("gather {}", stage)};
  SegmentNodes after{.name = fmt::format("unshard {} at its forward", stage),
                     .before_stage = stage};
  std::set<int32_t> follows;  // the last gathers
  for (const int32_t i : nodes) {
    const Node& node = graph.node(i);
    const bool is_last = node.rules->is_communication && !leads.contains(i) && node.stream != 0;
    bool reads = false;
    for_each_use(node, [&](Value v) { reads |= follows.contains(v.node); });
    if (is_last || reads) follows.insert(i);
    (is_last || (reads && node.rules->is_view) ? gathers
     : reads                                   ? after
                                               : before)
        .nodes.push_back(i);
  }
  std::vector<SegmentNodes> cut{std::move(before), std::move(gathers), std::move(after)};
  std::erase_if(cut, [](const SegmentNodes& s) { return s.nodes.empty(); });
  return cut;
}

}  // namespace

std::vector<SegmentNodes> cut_stages(const Graph& graph, bool unshards_by_stage) {
  std::map<PipelinePoint, std::vector<int32_t>> nodes;
  std::map<int, std::vector<int32_t>> unshards;  // by stage
  SegmentNodes update{.name = "update", .runs = Runs::kOnceAfter};
  std::set<int> stages;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    if (node.label.phase == Phase::kUnshard) {
      const int stage = unshards_by_stage ? node.label.stage : 0;
      unshards[stage].push_back(i);
    } else if (node.label.phase == Phase::kUpdate) {
      update.nodes.push_back(i);
    } else {
      stages.insert(node.label.stage);
      nodes[{kind_of(node), node.label.stage}].push_back(i);
    }
  }

  std::vector<SegmentNodes> cut;
  for (auto& [stage, unshard] : unshards) {
    if (unshards_by_stage) {
      for (SegmentNodes& part : cut_unshard(graph, stage, unshard)) cut.push_back(std::move(part));
    } else {
      cut.push_back({.name = "unshard", .runs = Runs::kOnceBefore, .nodes = std::move(unshard)});
    }
  }
  const auto add = [&](Kind kind, int stage) {
    const auto it = nodes.find({kind, stage});
    if (it == nodes.end()) return;
    cut.push_back({.name = segment_name(it->first),
                   .runs = Runs::kPerMicrobatch,
                   .point = it->first,
                   .nodes = std::move(it->second),
                   .is_background = is_message(kind)});
  };
  for (const int stage : stages) {
    for (const Kind kind : {Kind::kRecvForward, Kind::kForward, Kind::kSendForward})
      add(kind, stage);
  }
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    for (const Kind kind :
         {Kind::kRecvBackward, Kind::kBackwardInput, Kind::kSendBackward, Kind::kBackwardWeight})
      add(kind, *stage);
  }
  if (!update.nodes.empty()) cut.push_back(std::move(update));
  return cut;
}

std::string segment_name(const PipelinePoint& point) {
  return fmt::format("{} {}", name_of(point.kind), point.stage);
}

bool splits_backward(const std::vector<PipelineItem>& items) {
  return std::any_of(items.begin(), items.end(),
                     [](const PipelineItem& item) { return item.kind == Kind::kBackwardWeight; });
}

std::vector<int> forwards_to_join(std::span<const Segment> segments,
                                  const std::vector<PipelineItem>& items) {
  std::set<int> leave;  // stages
  for (const Segment& segment : segments) {
    if (segment.point && segment.point->kind == Kind::kBackwardWeight)
      leave.insert(segment.point->stage);
  }
  std::vector<int> joined(items.size(), -1);
  if (leave.empty() || splits_backward(items)) return joined;
  std::map<std::pair<Kind, int>, std::pair<size_t, size_t>> ends;  // first and last of a stage
  for (size_t i = 0; i < items.size(); ++i) {
    if (is_message(items[i].kind)) continue;
    const auto [at, is_new] = ends.try_emplace({items[i].kind, items[i].stage}, i, i);
    at->second.second = i;
  }
  const auto is_inner = [&](size_t i) {
    const auto [first, last] = ends.at({items[i].kind, items[i].stage});
    return first < i && i < last && !items[i].overlaps_previous;
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != Kind::kBackward || !leave.contains(items[i].stage) || !is_inner(i))
      continue;
    size_t next = i + 1;
    while (next < items.size() && is_message(items[next].kind)) ++next;
    if (next < items.size() && items[next].kind == Kind::kForward && is_inner(next))
      joined[i] = static_cast<int>(next);
  }
  return joined;
}

std::vector<ScheduleItem> pipeline_items(std::span<const Segment> segments,
                                         const std::vector<PipelineItem>& items) {
  ItemMaker maker(segments);
  const std::vector<int> joins = forwards_to_join(segments, items);
  const PipelineItem* left = nullptr;  // the backward of which the next forward runs what is left
  maker.run_once(Runs::kOnceBefore);
  for (size_t i = 0; i < items.size(); ++i) {
    const PipelineItem& item = items[i];
    if (left != nullptr && item.kind == Kind::kForward) {
      maker.run_joined(item, *left);
      left = nullptr;
      continue;
    }
    if (item.kind != Kind::kBackward) {
      maker.run(item.kind, item);
      continue;
    }
    const int join = joins[i];
    maker.run(Kind::kBackwardInput, item);
    const bool sends = i + 1 < items.size() && items[i + 1].kind == Kind::kSendBackward &&
                       items[i + 1].stage == item.stage &&
                       items[i + 1].microbatch == item.microbatch;
    if (sends) maker.run(Kind::kSendBackward, items[++i]);
    if (join >= 0 && maker.joined(items[join], item) >= 0) {
      left = &item;
    } else {
      maker.run(Kind::kBackwardWeight, item);
    }
  }
  maker.run_once(Runs::kOnceAfter);
  return maker.finish();
}

}  // namespace tokamak
