// Which nodes run together, and the items of a step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/buffers.h"

namespace tokamak {

/// Cuts "unshard", "microbatch" (or "forward" and "backward") and "update".
std::vector<SegmentNodes> cut_segments(const Graph& graph, bool split_backward);

/// Cuts the segments of a rank's pipeline stages: for each stage forward, backward (input
/// gradients) and weight gradients, and, in the background, one for each direction of receiving and
/// sending. A segment without nodes is left out. What runs once before is one segment, or, if
/// `unshards_by_stage`, up to three for each stage: its last gathers are apart from what they read
/// and from what is computed from it, so that they can outlive their item (outliving.h).
std::vector<SegmentNodes> cut_stages(const Graph& graph, bool unshards_by_stage = false);

/// Returns, for example, "send forward 3".
std::string segment_name(const PipelinePoint& point);

bool splits_backward(const std::vector<PipelineItem>& items);

/// For each item, returns the index of the forward with which the weight gradients that this
/// backward leaves can run, or -1. It is the next computation, and neither is the first or the last
/// of its stage, so that all such items are alike.
std::vector<int> forwards_to_join(std::span<const Segment> segments,
                                  const std::vector<PipelineItem>& items);

/// Returns the items of one step: those that run once before (each first of all, or at the first
/// forward of Segment::before_stage), the pipeline's, those that run once after. Computations wait
/// for their receives; a backward that is not split runs its weight gradients after its send, or
/// with the next forward where `segments` has the joined segment.
std::vector<ScheduleItem> pipeline_items(std::span<const Segment> segments,
                                         const std::vector<PipelineItem>& items);

}  // namespace tokamak
