#include "tokamak/graph/stage_twin.h"

#include <charconv>
#include <map>
#include <string>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/segments.h"
#include "tokamak/graph/slots.h"

namespace tokamak {
namespace {

// "pp 3 to 4" with both ends moved by `shift`; groups of all pipeline ranks stay.
GroupTable::Entry moved(GroupTable::Entry group, int shift, const TwinRequest& r) {
  if (group.name.starts_with("pp x ") || group.name == "pp") return group;
  for (int& rank : group.ranks) rank += shift * r.ranks_per_stage;
  if (!group.name.starts_with("pp ")) return group;
  int from = 0;
  int to = 0;
  const std::string_view text = group.name;
  const size_t middle = text.find(" to ");
  TOK_CHECK(middle != std::string_view::npos, "group {}", group.name);
  std::from_chars(text.data() + 3, text.data() + middle, from);
  std::from_chars(text.data() + middle + 4, text.data() + text.size(), to);
  group.name = fmt::format("pp {} to {}", from + shift, to + shift);
  return group;
}

StageSegments segments_of(const Plan& plan, const TwinRequest& request) {
  using enum PipelineItemKind;
  StageSegments stages;
  std::map<std::string, int> index;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& segment = plan.segments[s];
    index.emplace(segment.name, static_cast<int>(s));
    stages.segments.push_back({.name = segment.name,
                               .runs = segment.runs,
                               .nodes = {},
                               .is_background = segment.is_background});
  }
  for (size_t i = 0; i < request.stages_from.size(); ++i) {
    for (const PipelineItemKind kind : {kForward, kBackwardInput, kBackwardWeight, kSendForward,
                                        kRecvForward, kSendBackward, kRecvBackward}) {
      const auto segment = index.find(segment_name(kind, request.stages_from[i]));
      if (segment != index.end()) stages.index[{kind, request.stages_to[i]}] = segment->second;
    }
  }
  return stages;
}

}  // namespace

Plan twin_of(const Plan& plan, const TwinRequest& request) {
  TOK_CHECK(request.stages_from.size() == request.stages_to.size(), "{} stages for {}",
            request.stages_from.size(), request.stages_to.size());
  Plan twin = plan;
  for (GroupTable::Entry& group : twin.groups.entries)
    group = moved(std::move(group), request.to - request.from, request);
  twin.items = pipeline_items(segments_of(plan, request), request.items);
  for (SlotClass& slots : twin.slots) slots.bytes = slots.value_bytes;
  assign_slots(twin);
  return twin;
}

}  // namespace tokamak
