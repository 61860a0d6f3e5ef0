// Pages of prices (core/page.h), each below 1.2 MB whatever it shows.
#pragma once

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/price/report/report.h"

namespace tokamak::price {

enum class BlockKind : uint8_t { kForward, kBackward, kWeightGradient, kOnce, kCommunication };
inline constexpr size_t kNumBlockKinds = 5;

/// A stretch of one kind of work.
struct Block {
  BlockKind kind = BlockKind::kForward;
  int microbatch = 0;
  double begin_s = 0.0;
  double end_s = 0.0;
};

/// A rank's streams: compute above, and below it communication during compute.
struct TimelineRow {
  std::string name;
  std::vector<Block> compute;
  std::vector<Block> communication;
};

/// Returns rows of the spans of a step for at most 24 of the ranks, evenly chosen, in their order.
/// Neighbours of one kind and microbatch, and spans too short to be seen, become one block.
/// REQUIRES: spans number the ranks by their place in `ranks`.
std::vector<TimelineRow> timeline_rows(std::span<const PricedSpan> spans,
                                       std::span<const int> ranks, double step_s);

/// Bytes in use at a point in time, by what holds them.
struct MemoryPoint {
  double time_s = 0.0;
  EnumArray<ArenaKind, double, kNumDeviceArenas> bytes{};
};

/// A value of a sweep: its rate, or why it has none.
struct SweepPoint {
  double device_tokens_per_s = 0.0;
  std::string reason;  ///< empty where there is a rate
};

struct SweepCurve {
  std::string name;  ///< empty where there is no other
  std::vector<SweepPoint> points;
};

/// A rate that was measured at a value of a sweep.
struct PublishedPoint {
  double value = 0.0;
  double device_tokens_per_s = 0.0;
  std::string title;
};

struct SweepPicture {
  std::string key;
  std::vector<std::string> values;
  std::vector<SweepCurve> curves;         ///< each with a point for each value
  std::vector<PublishedPoint> published;  ///< only of a sweep of GPUs
};

struct MemoryInStep {
  int rank = 0;
  double planned_bytes = 0.0;
  std::vector<MemoryPoint> points;
};

/// Returns a page with the report's table and pictures.
std::string step_page(const Report& report, std::span<const TimelineRow> rows,
                      const MemoryInStep& memory);

/// Returns a page with a sweep's table, as text, and tokens/s/GPU by value: curves over numbers,
/// for GPUs with the ideal, which is the first value's rate; bars for other values. REQUIRES: one
/// point has a rate.
std::string sweep_page(const std::string& title, const std::string& table,
                       const SweepPicture& sweep);

}  // namespace tokamak::price
