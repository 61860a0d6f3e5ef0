#include "tokamak/pipeline/schedule_picture.h"

#include <algorithm>
#include <array>
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

// Red, green, blue of the lightest shade, by PipelineOp.
constexpr std::array<std::array<int, 3>, 4> kColors = {
    {{142, 190, 240}, {146, 210, 150}, {146, 210, 150}, {244, 200, 120}}};

std::string color_of(const PipelineSchedule& s, int rank, const PipelineAction& a) {
  const std::vector<int> stages = s.stages_of(rank);
  const auto chunk = std::find(stages.begin(), stages.end(), a.stage) - stages.begin();
  const double shade = 1.0 - 0.35 * static_cast<double>(chunk) /
                                 std::max<double>(1.0, static_cast<double>(stages.size()) - 1.0);
  const auto& [red, green, blue] = kColors[static_cast<size_t>(a.op)];
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(red * shade), std::lround(green * shade),
                     std::lround(blue * shade));
}

constexpr int kUnit = 22;  // pixels of a unit of time
constexpr int kRow = 24;   // of a rank
constexpr int kLeft = 60;  // of the ranks' names
constexpr int kTop = 30;   // of the headline

std::string svg_action(const PipelineSchedule& s, int rank, const TimedAction& timed, double top,
                       double height) {
  const double x = kLeft + kUnit * timed.begin;
  const double width = kUnit * (timed.end - timed.begin);
  return fmt::format(
      "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>"
      "<text x=\"{}\" y=\"{}\">{}</text></g>\n",
      to_string(timed.action), x, top, width, height, color_of(s, rank, timed.action),
      x + width / 2, top + height / 2 + 4, timed.action.microbatch);
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

std::string schedule_svg(const PipelineSchedule& schedule) {
  const Timeline timeline = simulate_schedule(schedule, {});
  const double width = kLeft + kUnit * timeline.makespan + 10;
  const int height = kTop + kRow * schedule.num_ranks + 10;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n<style>text{{font:11px sans-serif;text-anchor:middle}}"
      ".left{{text-anchor:start}}rect{{stroke:#fff;stroke-width:1}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text class=\"left\" x=\"6\" y=\"18\">{2}</text>\n",
      width, height, headline(schedule, timeline));
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    const int top = kTop + kRow * rank;
    svg += fmt::format(
        "<text class=\"left\" x=\"6\" y=\"{}\">rank {}</text>\n"
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#eee\"/>\n",
        top + kRow / 2 + 4, rank, kLeft, top, kUnit * timeline.makespan, kRow);
    const auto& list = timeline.ranks[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      const bool second = list[i].action.overlaps_previous;
      const bool first = i + 1 < list.size() && list[i + 1].action.overlaps_previous;
      const double half = kRow / 2.0;
      svg += svg_action(schedule, rank, list[i], second ? top + half : top,
                        first || second ? half : kRow);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace tokamak
