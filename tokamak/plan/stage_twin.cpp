#include "tokamak/plan/stage_twin.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/plan/join_forwards.h"
#include "tokamak/plan/segments.h"
#include "tokamak/plan/slots.h"

namespace tokamak {
namespace {

// Returns the group with its ranks moved; groups of all pipeline ranks stay as they are.
GroupTable::Entry moved(GroupTable::Entry group, const TwinRequest& r) {
  using enum GroupPurpose;
  TOK_CHECK(group.purpose != kTied, "group {}", group.name);
  const bool is_message = group.purpose == kMessage;
  if (group.axes.contains(MeshAxis::kPp) && !is_message) return group;
  for (int& rank : group.ranks) rank += (r.to - r.from) * r.ranks_per_stage;
  if (is_message)
    group.name =
        message_name(group.ranks[0] / r.ranks_per_stage, group.ranks[1] / r.ranks_per_stage);
  return group;
}

// Makes each segment do for a stage of rank `to` what it does for the one in its place.
void move_stages(std::vector<Segment>& segments, const TwinRequest& r) {
  for (Segment& segment : segments) {
    const auto moved_from = [&](int stage) {
      const auto at = std::find(r.stages_from.begin(), r.stages_from.end(), stage);
      TOK_CHECK(at != r.stages_from.end(), "segment {}", segment.name);
      return r.stages_to[at - r.stages_from.begin()];
    };
    if (segment.before_stage) segment.before_stage = moved_from(*segment.before_stage);
    if (!segment.point) continue;
    segment.point->stage = moved_from(segment.point->stage);
    segment.name = segment_name(*segment.point);
  }
}

}  // namespace

Plan twin_of(const Plan& plan, const TwinRequest& request) {
  TOK_CHECK(request.stages_from.size() == request.stages_to.size(), "{} stages for {}",
            request.stages_from.size(), request.stages_to.size());
  Plan twin = plan;
  for (GroupTable::Entry& group : twin.groups.entries) group = moved(std::move(group), request);
  const bool joins = part_forwards(twin);
  move_stages(twin.segments, request);
  for (SlotClass& slots : twin.slots) slots.bytes = slots.value_bytes;
  if (joins) join_forwards(twin, request.items, request.rates);
  twin.items = pipeline_items(twin.segments, request.items);
  assign_slots(twin);
  return twin;
}

}  // namespace tokamak
