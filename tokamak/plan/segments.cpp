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
      if (segments[s].point) index_[*segments[s].point] = static_cast<int>(s);
    }
  }

  void run_once(Runs when) {
    for (size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].runs == when) made_.push_back({.segment = static_cast<int>(s)});
    }
  }

  void run(Kind kind, const PipelineItem& item) {
    const auto it = index_.find({kind, item.stage});
    if (it == index_.end()) return;
    ScheduleItem next{.segment = it->second, .microbatch = item.microbatch};
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

  std::vector<ScheduleItem> finish() {
    std::map<int, int> last;
    for (size_t i = 0; i < made_.size(); ++i) {
      made_[i].is_first = !last.contains(made_[i].segment);
      made_[i].is_last = false;
      last[made_[i].segment] = static_cast<int>(i);
    }
    for (const auto& [segment, i] : last) made_[i].is_last = true;
    return std::move(made_);
  }

 private:
  std::span<const Segment> segments_;
  std::map<PipelinePoint, int> index_;
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

std::vector<SegmentNodes> cut_stages(const Graph& graph, bool unshards_by_stage) {
  std::map<PipelinePoint, std::vector<int32_t>> nodes;
  std::map<int, SegmentNodes> unshards;  // by stage
  SegmentNodes update{.name = "update", .runs = Runs::kOnceAfter};
  std::set<int> stages;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(i);
    if (node.is_leaf()) continue;
    if (node.label.phase == Phase::kUnshard) {
      const int stage = unshards_by_stage ? node.label.stage : 0;
      unshards[stage].nodes.push_back(i);
    } else if (node.label.phase == Phase::kUpdate) {
      update.nodes.push_back(i);
    } else {
      stages.insert(node.label.stage);
      nodes[{kind_of(node), node.label.stage}].push_back(i);
    }
  }

  std::vector<SegmentNodes> cut;
  for (auto& [stage, unshard] : unshards) {
    unshard.name = unshards_by_stage ? fmt::format("unshard {}", stage) : "unshard";
    unshard.runs = Runs::kOnceBefore;
    cut.push_back(std::move(unshard));
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

std::vector<ScheduleItem> pipeline_items(std::span<const Segment> segments,
                                         const std::vector<PipelineItem>& items) {
  ItemMaker maker(segments);
  maker.run_once(Runs::kOnceBefore);
  for (size_t i = 0; i < items.size(); ++i) {
    const PipelineItem& item = items[i];
    if (item.kind != Kind::kBackward) {
      maker.run(item.kind, item);
      continue;
    }
    maker.run(Kind::kBackwardInput, item);
    const bool sends = i + 1 < items.size() && items[i + 1].kind == Kind::kSendBackward &&
                       items[i + 1].stage == item.stage &&
                       items[i + 1].microbatch == item.microbatch;
    if (sends) maker.run(Kind::kSendBackward, items[++i]);
    maker.run(Kind::kBackwardWeight, item);
  }
  maker.run_once(Runs::kOnceAfter);
  return maker.finish();
}

}  // namespace tokamak
