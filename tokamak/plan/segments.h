// Which nodes run together, and the items of a step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/buffers.h"

namespace tokamak {

/// "unshard", "microbatch" (or "forward" and "backward"), "update".
std::vector<SegmentNodes> cut_segments(const Graph& graph, bool split_backward);

/// The segments of a rank's pipeline stages: for each stage forward, backward (input gradients) and
/// weight gradients, and one for each direction of receiving and sending, in the background; none
/// where a stage has no such node.
std::vector<SegmentNodes> cut_stages(const Graph& graph);

/// "send forward 3".
std::string segment_name(const PipelinePoint& point);

/// Whether it is a message, and so runs in the background.
bool is_message(PipelineItemKind kind);

bool splits_backward(const std::vector<PipelineItem>& items);

/// One step: what runs once before, the pipeline's items, what runs once after. Computations wait
/// for their receives; a backward that is not split runs its weight gradients after its send.
std::vector<ScheduleItem> pipeline_items(std::span<const Segment> segments,
                                         const std::vector<PipelineItem>& items);

}  // namespace tokamak
