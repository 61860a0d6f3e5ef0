// The event loop of prices: the streams of ranks run Works in order, with waits between streams and
// meetings between ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/core/progress.h"
#include "tokamak/price/task/task_time.h"

namespace tokamak::price {

/// The next action of a stream: a task, a whole item, or a point in time, which takes 0 seconds.
struct Work {
  double seconds = 0.0;
  Category category = Category::kMemoryBound;  ///< kExposedComm: communication
  /// Whether this is a single task, which the other kind beside it slows and is slowed by, and
  /// whose rate other communication over the same link halves.
  bool is_shared = false;
  bool is_whole_item = false;      ///< the caller knows its categories
  bool is_by_copy_engine = false;  ///< of communication
  /// Whether it is a message, whose kernel holds multiprocessors from its arrival at the meeting
  /// on.
  bool holds = false;
  double held_factor = 1.0;  ///< multiplies the seconds of compute during such a message
  int stream = 0;            ///< of this rank, counted from 0
  int link = 0;              ///< the outermost level of the fabric that communication takes
  int meeting = -1;          ///< begins when all its members have come
  int first_wait = 0;        ///< RankWorks::waits[first_wait .. first_wait + num_waits)
  int num_waits = 0;
};

/// One rank's Works in issue order.
struct RankWorks {
  std::vector<Work> works;
  std::vector<int> waits;  ///< indices of earlier Works of this rank
  int num_streams = 1;

  /// Adds a Work that waits for `after`; returns its index.
  int add(Work work, std::span<const int> after);
};

/// Factors on the seconds of each kind of Work while it overlaps the other kind.
struct Slowdown {
  double compute = 1.0;
  double compute_beside_copy_engine = 1.0;  ///< without other communication
  double communication = 1.0;
};

struct RankTimes {
  std::vector<double> begin_s;  ///< by work
  std::vector<double> end_s;
  double last_s = 0.0;  ///< the end of all
  /// Seconds without whole items: compute by its category, else communication that has met.
  EnumArray<Category, double, kNumCategories> by_category{};
  double whole_items_s = 0.0;
  double hidden_comm_s = 0.0;  ///< during compute or whole items
};

Slowdown slowdown_of(const Software& software);

/// Runs all ranks together. `meetings` has the number of members of each meeting. Throws Bug if
/// ranks wait for each other forever.
std::vector<RankTimes> run_streams(std::span<const RankWorks> ranks, std::span<const int> meetings,
                                   const Slowdown& slowdown, const Progress& progress = {});

}  // namespace tokamak::price
