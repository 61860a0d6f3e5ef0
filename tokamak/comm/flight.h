// The flight record of a rank says which collective it has entered last in each of its groups, so
// that a hang or a death can be reported by name. It is plain memory that its rank writes and that
// another thread, or another process through a mapped file, may read at any moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tokamak/core/dtype.h"

namespace tokamak {

enum class CollectiveKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kSendRecv,
  kBarrier,
};

/// Returns "all_gather", "send_recv", ...
std::string_view name_of(CollectiveKind kind);

/// The record of one group of one rank. The thread that uses the group's communicator writes it.
struct FlightLane {
  char group[47] = {};
  std::atomic<CollectiveKind> kind{};
  std::atomic<DType> dtype{};
  std::atomic<int64_t> count{0};
  std::atomic<uint64_t> calls_entered{0};
  std::atomic<uint64_t> calls_finished{0};
  /// The rank's count of calls in all groups when this one was entered.
  std::atomic<uint64_t> stamp{0};

  void enter(CollectiveKind call, DType of, int64_t elements, uint64_t now);

  void finish() { calls_finished.store(calls_entered.load(), std::memory_order_release); }

  /// Marks the next `calls` entered calls as finished, for calls that outlast their entry.
  void finish(uint64_t calls) { calls_finished.fetch_add(calls, std::memory_order_release); }
};

/// How far a rank has got.
enum class RankPhase : uint8_t {
  kRunning,
  kLeaving,  ///< done, and waiting for the others to finish
  kFailed,   ///< an error is on its way to the user
};

/// Names the work of a rank; each kind has a limit of its own on how long the rank may be silent.
enum class RankActivity : uint8_t {
  kStarting,
  kComputing,
  kValidating,
  kFiles,  ///< it reads data, logs or saves
  kEnding,
};

/// The record of all groups of one rank. Zero bytes are an empty page, so it may be a fresh file.
struct FlightPage {
  /// Groups beyond these share the last lane.
  static constexpr uint32_t kMaxLanes = 256;

  char host[64] = {};
  std::atomic<int32_t> rank{0};
  std::atomic<RankPhase> phase{};
  std::atomic<uint32_t> num_lanes{0};
  std::atomic<uint64_t> num_calls{0};
  std::atomic<RankActivity> activity{};
  std::atomic<uint64_t> ticks{0};  ///< counted by the rank wherever it has got something done
  std::atomic<int64_t> step{0};    ///< the last step done; 0 = none
  std::atomic<uint64_t> beats{0};  ///< counted by the rank's watchdog while the process runs
  /// Whether others wait for work of this rank, of which a thread tells them by collectives.
  std::atomic<bool> is_awaited{false};
  FlightLane lanes[kMaxLanes];

  void tick() { ticks.fetch_add(1, std::memory_order_relaxed); }

  /// Whether a collective has been entered and not finished.
  bool is_in_collective() const;

  /// Returns a lane for a new group. One thread of the rank calls it.
  FlightLane* add_lane(std::string_view group);
};

/// Marks what a rank does while it lives, inside what it did before.
class ActivityScope {
 public:
  ActivityScope(FlightPage& page, RankActivity activity)
      : page_(page), before_(page.activity.exchange(activity)) {}

  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

  ~ActivityScope() {
    page_.tick();
    page_.activity = before_;
  }

 private:
  FlightPage& page_;
  RankActivity before_;
};

/// Returns "rank 2 (node7): in all_reduce 17 of \"tp\" (1024 float32)", with one "in ..." for each
/// group with a call in progress. It names the last call entered and, where several are in
/// progress, how many have ended. If none is, the text says "left ..." of the last call, or "has
/// entered no collective" before the first.
std::string describe(const FlightPage& page);

}  // namespace tokamak
