#include "tokamak/graph/stage_twin.h"

#include <charconv>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/graph/segments.h"

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

// The stage at the end of a segment's name; -1 of one that runs once a step.
int stage_of(const std::string& name) {
  const size_t space = name.rfind(' ');
  if (space == std::string::npos) return -1;
  int stage = -1;
  std::from_chars(name.data() + space + 1, name.data() + name.size(), stage);
  return stage;
}

StageSegments segments_of(const Plan& plan, int shift) {
  StageSegments stages;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const Segment& segment = plan.segments[s];
    stages.segments.push_back({.name = segment.name,
                               .runs = segment.runs,
                               .nodes = {},
                               .is_background = segment.is_background});
    const int stage = stage_of(segment.name);
    if (stage < 0) continue;
    for (const PipelineItemKind kind :
         {PipelineItemKind::kForward, PipelineItemKind::kBackwardInput,
          PipelineItemKind::kBackwardWeight, PipelineItemKind::kSendForward,
          PipelineItemKind::kRecvForward, PipelineItemKind::kSendBackward,
          PipelineItemKind::kRecvBackward}) {
      if (segment.name == segment_name(kind, stage))
        stages.index[{kind, stage + shift}] = static_cast<int>(s);
    }
  }
  return stages;
}

}  // namespace

Plan twin_of(const Plan& plan, const TwinRequest& request) {
  const int last = request.num_pipeline_ranks - 1;
  TOK_CHECK(request.from > 0 && request.from < last && request.to > 0 && request.to < last,
            "rank {} from {} of {}", request.to, request.from, last + 1);
  const int shift = request.to - request.from;
  Plan twin = plan;
  for (GroupTable::Entry& group : twin.groups.entries)
    group = moved(std::move(group), shift, request);
  twin.items = pipeline_items(segments_of(plan, shift), request.items);
  return twin;
}

}  // namespace tokamak
