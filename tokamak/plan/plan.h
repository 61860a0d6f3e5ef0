// The plan: everything that costs time or memory, decided. One loop runs it (exec/), another prices
// it (price/).
//
// Semantics. A plan is a list of segments; a segment is a list of tasks in issue order. A schedule
// item runs one segment for one microbatch. Every operand is a range of an arena with strides.
// Arenas:
//   state    named State, laid out once for all plans of a run (StateLayout);
//   carried  made once a step by one segment and read by others (weights gathered in fp32);
//   slot     made in one per-microbatch segment and read in a later one (saved activations of a
//            pipeline stage);
//   scratch  lives within one segment run; reused by every segment and every plan.
// Tasks of one stream run in issue order. A foreground item begins when all earlier foreground
// items have ended, on all streams except those that outlive their item
// (Segment::outliving_streams). A background item (Segment::is_background) begins when the
// foreground items issued before it have ended. An item may rely on the end of background and
// outliving tasks only if it waits for their item or follows an item that does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/enum_array.h"
#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/graph/state_layout.h"
#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// kHost is State in pinned host memory; all before it are the device's.
enum class ArenaKind : uint8_t { kState, kCarried, kSlot, kScratch, kHost };
inline constexpr size_t kNumArenas = 5;
inline constexpr size_t kNumDeviceArenas = 4;

constexpr bool holds_state(ArenaKind arena) {
  return arena == ArenaKind::kState || arena == ArenaKind::kHost;
}

std::string_view name_of(ArenaKind arena);

struct Operand {
  ArenaKind arena = ArenaKind::kScratch;
  int64_t offset = 0;  ///< bytes; of arena slot: within a slot of its class
  TensorType type;
  Dims strides;         ///< elements
  int slot_class = -1;  ///< arena slot: which class of slots

  /// Bytes from `offset` to the end of the last element.
  int64_t extent_bytes() const;
};

/// Bytes from the first element of a tensor laid out with `strides` to the end of its last.
int64_t extent_bytes(const TensorType& type, const Dims& strides);

struct Task {
  const OpRules* rules = nullptr;
  std::shared_ptr<const void> op;
  const Variant* variant = nullptr;
  std::vector<Operand> in;
  std::vector<Operand> out;
  std::vector<std::optional<AccumulateMode>> accumulate;  ///< by output
  int64_t workspace_offset = 0;                           ///< scratch bytes
  int64_t workspace_bytes = 0;
  Label label;
  int stream = 0;
  /// Tasks of other streams, by index in the segment, that must have ended. A task that does not
  /// run in this microbatch (`when`) counts as ended once its stream has come to it, and waits for
  /// none.
  std::vector<int> waits;
  bool is_clone = false;
  When when = When::kEvery;
};

/// The types of a task's operands; must outlive the result of kernel_types().
struct TaskTypes {
  explicit TaskTypes(const Task& task);

  KernelTypes kernel_types() const { return {.in = in, .out = out}; }

  Types in;
  Types out;
};

/// Returns what the task costs, by its op's rule on its operands.
Cost cost_of(const Task& task);

/// The segments, by index, that a joined segment runs together: a stage's forward of one microbatch
/// beside the weight gradients that a backward has left of an earlier one (join_forwards.h).
struct JoinedSegments {
  int forward = 0;
  int weight = 0;
};

struct Segment {
  /// When a step runs it: once before all microbatches, in each, or once after all.
  enum class Runs : uint8_t { kOnceBefore, kPerMicrobatch, kOnceAfter };

  std::string name;  ///< for people
  Runs runs = Runs::kOnceBefore;
  std::optional<PipelinePoint> point;  ///< if it belongs to a pipeline
  std::vector<Task> tasks;
  /// Set for pipeline sends and receives: the loop continues while the segment runs, and items that
  /// need it wait for it. None of its tasks is on stream 0.
  bool is_background = false;
  /// Streams that the end of a foreground item does not wait for: they reduce gradients in the last
  /// microbatch, or gather weights before the first, while the pipeline runs. Their tasks touch
  /// only State and, where they gather, what is carried.
  std::vector<int> outliving_streams;
  /// If set, this segment of Runs::kOnceBefore runs right before this stage's first forward.
  std::optional<int> before_stage;
  std::optional<JoinedSegments> joined;

  bool outlives(int stream) const {
    return std::find(outliving_streams.begin(), outliving_streams.end(), stream) !=
           outliving_streams.end();
  }
};

/// Slots for values that one segment saves for another. A microbatch holds one slot from the item
/// of `first_segment` to that of `last_segment` (or to the end of background tasks that use it).
/// Slot k begins at offset + k * bytes of the slot arena; classes may share their slots.
struct SlotClass {
  int first_segment = 0;
  int last_segment = 0;
  int64_t bytes = 0;  ///< of one slot
  int count = 1;
  int64_t offset = 0;
  int64_t value_bytes = 0;  ///< of the saved values; the slot may be larger for another class
  /// The class that has these slots, where this number stands for the slot that the weight
  /// gradients of a joined segment read; -1: itself.
  int alias_of = -1;

  int64_t offset_of(int slot) const { return offset + slot * bytes; }
};

struct ScheduleItem {
  int segment = 0;
  int microbatch = 0;
  bool is_first = true;    ///< the segment's first item of the step: accumulation overwrites
  bool is_last = true;     ///< its last: tasks of When::kLastMicrobatch run
  std::vector<int> waits;  ///< earlier items whose background or outliving tasks must have ended
  std::vector<int> slots;  ///< by slot class: the slot that this microbatch holds; -1 = none
  /// The microbatch of a joined segment's weight gradients; slots of aliases are this microbatch's.
  int left_microbatch = -1;

  int microbatch_of(const SlotClass& slots_of) const {
    return slots_of.alias_of >= 0 ? left_microbatch : microbatch;
  }
};

/// The engine that moves the bytes of a group's calls.
enum class Transport : uint8_t {
  kKernels,
  kCopyEngines,
  /// Copy engines if the ranks, once bound, find that they laid out their memory alike, else
  /// kernels; a price assumes kernels.
  kCopyEnginesIfAlike
};

/// The row of the memory table that holds the slot arena.
inline constexpr std::string_view kSavedActivationsRow = "saved activations";
inline constexpr std::string_view kTemporariesRow = "temporaries and workspace";

/// One row of the memory table: who owns how many bytes.
struct MemoryRow {
  std::string owner;
  int64_t bytes = 0;       ///< of the device
  int64_t host_bytes = 0;  ///< of pinned host memory
};

struct Plan {
  std::vector<Segment> segments;
  EnumArray<ArenaKind, int64_t, kNumArenas> arena_bytes{};
  std::vector<MemoryRow> memory;  ///< sums to the arena bytes
  std::vector<SlotClass> slots;
  GroupTable groups;                  ///< named by its communication tasks
  std::vector<Transport> transports;  ///< by group (plan/transports.h); empty = kernels carry all
  std::vector<ScheduleItem> items;    ///< one step, where a pipeline schedule was planned
  bool device_graphs = false;         ///< a device records stretches of tasks once and replays them

  /// Returns the order in which segments run in a step of `num_microbatches`: `items`, or
  /// once-a-step segments around the microbatches.
  std::vector<ScheduleItem> schedule(int num_microbatches) const;

  /// Raises the arenas to those of a plan that shares them.
  void hold_room_for(const Plan& other);

  int64_t peak_bytes() const;  ///< of the device

  int64_t host_bytes() const { return arena_bytes[ArenaKind::kHost]; }

  /// Returns the transport of a task's group, kKernels for a task that does not communicate.
  Transport transport_of(const Task& task) const;
};

/// Returns the scratch bytes of a segment: the highest end of what its tasks have there.
int64_t scratch_bytes(const Segment& segment);

/// Returns one line per task, for people, diffs and tests.
std::string to_text(const Plan& plan);

/// Throws Bug (check_plan.cpp) unless streams and waits (vector clocks) order any two tasks that
/// touch common bytes, one of them writing, in one segment and between the items of the plan's
/// schedule; every operand lies inside its arena or slot; and one stream uses each communication
/// group.
void check_plan(const Plan& plan);

/// Throws Bug unless each group is used on one stream alone, so that the plan says in which order a
/// rank comes to the group's collectives.
void check_groups(const Plan& plan);

/// Throws Bug (check_ranks.cpp) unless the steps of all ranks of the mesh, `plans` by rank, fit
/// together: see check_kinds() of rank_step.h.
void check_ranks(const Mesh& mesh, std::span<const Plan* const> plans, int num_microbatches);

}  // namespace tokamak
