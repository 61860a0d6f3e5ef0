#include "tokamak/pipeline/schedule_picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/pipeline/timeline.h"

namespace tokamak {
namespace {

std::string label_of(const PipelineSchedule& s, const PipelineAction& a) {
  const std::string text = to_string(a);
  const bool one_stage_each = s.num_stages() == s.num_ranks;
  return one_stage_each ? text.substr(std::to_string(a.stage).size()) : text;
}

// Actions that run at once: one, or an overlapped pair.
struct Block {
  std::string label;
  int begin = 0;
  int end = 0;
};

std::vector<Block> blocks_of(const PipelineSchedule& s, const std::vector<TimedAction>& list) {
  std::vector<Block> blocks;
  for (const TimedAction& timed : list) {
    const std::string label = label_of(s, timed.action);
    if (timed.action.overlaps_previous) {
      blocks.back().label += "&" + label;
    } else {
      blocks.push_back({label, static_cast<int>(std::lround(timed.begin)),
                        static_cast<int>(std::lround(timed.end))});
    }
  }
  return blocks;
}

size_t cell_width(const std::vector<std::vector<Block>>& ranks) {
  size_t width = 2;
  for (const auto& blocks : ranks) {
    for (const Block& block : blocks) {
      const size_t cells = block.end - block.begin;
      // A label takes its cells and the blanks between them.
      width = std::max(width, (block.label.size() + 1 + cells - 1) / cells - 1);
    }
  }
  return width;
}

std::string row_text(const std::vector<Block>& blocks, size_t width, int num_cells) {
  std::string text;
  int cell = 0;
  const auto idle_until = [&](int end) {
    for (; cell < end; ++cell) text += fmt::format(" {:<{}}", ".", width);
  };
  for (const Block& block : blocks) {
    idle_until(block.begin);
    const int cells = block.end - block.begin;
    const size_t room = cells * (width + 1) - 1;
    text += cells == 1 ? fmt::format(" {:<{}}", block.label, room)
                       : fmt::format(" {:-<{}}", block.label, room);
    cell = block.end;
  }
  idle_until(num_cells);
  while (text.back() == ' ') text.pop_back();
  return text + '\n';
}

std::string headline(const PipelineSchedule& s, const Timeline& t) {
  return fmt::format(
      "{}: {} ranks, {} stages, {} microbatches; {} units of time, bubble {:.1f} % of the work",
      s.name, s.num_ranks, s.num_stages(), s.num_microbatches, t.makespan,
      100.0 * t.bubble_fraction());
}

std::string rank_table(const PipelineSchedule& s, const Timeline& t) {
  const std::vector<int> slots = slots_of(s);
  const std::vector<int> chunks = chunks_in_flight(s);
  std::string text;
  for (int rank = 0; rank < s.num_ranks; ++rank) {
    std::vector<std::string> held;
    for (const int stage : s.stages_of(rank))
      held.push_back(fmt::format("stage {}: {}", stage, slots[stage]));
    text += fmt::format("rank {}: at most {} in flight ({}), idle {} of {}\n", rank, chunks[rank],
                        fmt::join(held, ", "), t.idle(rank), t.makespan);
  }
  return text;
}

}  // namespace

std::string schedule_text(const PipelineSchedule& schedule) {
  const Timeline timeline = simulate_schedule(schedule, {});
  std::vector<std::vector<Block>> ranks;
  for (const auto& list : timeline.ranks) ranks.push_back(blocks_of(schedule, list));
  const size_t width = cell_width(ranks);
  std::string text = headline(schedule, timeline) + "\n\n";
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    text += fmt::format("rank {:<{}}", rank, std::to_string(schedule.num_ranks - 1).size());
    text += row_text(ranks[rank], width, static_cast<int>(std::lround(timeline.makespan)));
  }
  return text + '\n' + rank_table(schedule, timeline);
}

}  // namespace tokamak
