// Where the time of a step goes: a table by op, and a summary by what bounds it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "tokamak/plan/task_span.h"

namespace tokamak {

/// How tasks are grouped into the rows of a table.
enum class OpGrouping : uint8_t { kByOp, kByShape };

/// The tasks of one op, or of one op, variant and shape.
struct OpTime {
  std::string op;
  std::string variant;  ///< only by shape, as is the next
  std::string shape;    ///< "m x n x k" of a matmul, else dims of the largest operand; of 8-bit
                        ///< floats their scales and layout too
  Cost::Kind kind = Cost::Kind::kMemory;
  int64_t calls = 0;
  double seconds = 0.0;
  double flops = 0.0;
  double bytes = 0.0;       ///< read and written
  double bytes_sent = 0.0;  ///< or received, by a receive
  double floor_s = 0.0;     ///< the least that the device could take; 0 = not known

  /// Returns 0 where the floor is not known.
  double share_of_floor() const { return seconds > 0.0 ? floor_s / seconds : 0.0; }
};

/// Returns the larger of flops and bytes over the device's rates, or 0 where the rate that bounds
/// the task is not known, and for communication. Bytes include a read of each output that always
/// accumulates.
double floor_seconds(const Task& task, const DeviceRates& rates);

/// Whether launching its tasks one by one takes more than 5 % of the least time for their work.
bool is_launch_bound(const Plan& plan, const Rates& rates);

/// Returns the sums of each group of tasks, slowest first.
std::vector<OpTime> time_by_op(std::span<const TaskSpan> spans, const DeviceRates& rates = {},
                               OpGrouping grouping = OpGrouping::kByOp);

/// How stream 0 spent a step; the parts' seconds add up to wall_s.
struct StepSummary {
  enum Part : uint8_t { kGemm, kAttention, kMemoryBound, kExposedComm, kIdle };

  struct Spent {
    double seconds = 0.0;
    double floor_s = 0.0;
  };

  struct GroupTraffic {
    std::string group;  ///< its name in the plan
    std::string op;
    int64_t calls = 0;
    double seconds = 0.0;  ///< of the tasks, waits for slower peers included
    double bytes = 0.0;    ///< sent by this rank, or received by a receive

    /// Returns what nccl-tests call the bus bandwidth.
    double bus_bytes_per_s() const { return seconds > 0.0 ? bytes / seconds : 0.0; }
  };

  double wall_s = 0.0;  ///< from the first task's begin to the last one's end
  /// Exposed communication is that of stream 0 and that of other streams while stream 0 does
  /// nothing; idle is the time when no stream does anything.
  std::array<Spent, 5> parts;
  std::vector<GroupTraffic> groups;  ///< of all streams, by name

  /// Returns the floor of all that stream 0 computes.
  double floor_s() const;
};

StepSummary summarize(std::span<const TaskSpan> spans, const DeviceRates& rates,
                      const GroupTable& groups);

/// Returns the table for people, with shares of `wall_s`.
std::string to_text(std::span<const OpTime> table, double wall_s);

std::string to_text(const StepSummary& summary);

/// Returns the table by shape and the summary, as rankN_ops.txt holds them.
std::string op_report(std::span<const TaskSpan> spans, const DeviceRates& rates,
                      const GroupTable& groups);

}  // namespace tokamak
