#include "tokamak/graph/stage_twin.h"

#include <algorithm>
#include <charconv>

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

// Each does for a stage of rank `to` what it does for the one in its place.
void move_stages(std::vector<Segment>& segments, const TwinRequest& r) {
  for (Segment& segment : segments) {
    if (!segment.point) continue;
    const auto at = std::find(r.stages_from.begin(), r.stages_from.end(), segment.point->stage);
    TOK_CHECK(at != r.stages_from.end(), "segment {}", segment.name);
    segment.point->stage = r.stages_to[static_cast<size_t>(at - r.stages_from.begin())];
    segment.name = segment_name(*segment.point);
  }
}

}  // namespace

Plan twin_of(const Plan& plan, const TwinRequest& request) {
  TOK_CHECK(request.stages_from.size() == request.stages_to.size(), "{} stages for {}",
            request.stages_from.size(), request.stages_to.size());
  Plan twin = plan;
  for (GroupTable::Entry& group : twin.groups.entries)
    group = moved(std::move(group), request.to - request.from, request);
  move_stages(twin.segments, request);
  twin.items = pipeline_items(twin.segments, request.items);
  for (SlotClass& slots : twin.slots) slots.bytes = slots.value_bytes;
  assign_slots(twin);
  return twin;
}

}  // namespace tokamak
