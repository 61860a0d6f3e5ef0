// Seconds of one Task on a machine, alone. Formulas: docs/pricing.md.
#pragma once

#include <vector>

#include "tokamak/plan/plan.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/price/task/collective_time.h"
#include "tokamak/price/task/step_clock.h"

namespace tokamak::price {

/// How a price may differ from the plan that is priced.
struct PriceOptions {
  /// The precision of matmuls of blocks that the plan has in bf16; if it is lower, they cast
  /// (low_precision.h). It describes software other than ours.
  Precision linear = Precision::kBf16;
  bool device_graphs = true;  ///< kernels are launched by captured graphs
  /// Tensor-parallel ranks that all hold the same pipeline message each send a part of it, and
  /// gather the rest.
  bool splits_messages = false;
  /// Blocks of the model per block of the plan: power limits clocks in the step of the whole model.
  double block_weight = 1.0;
};

enum class Category : uint8_t {
  kGemm,
  kAttention,
  kMemoryBound,
  kExposedComm,
  kHost,
  kBubble,
  kOptimizer
};
inline constexpr size_t kNumCategories = 7;

/// Returns "GEMM", "attention", "memory-bound", "exposed communication", "host", "bubble" or
/// "optimizer".
std::string_view name_of(Category category);

/// Returns the category of a task's time if nothing hides it.
Category category_of(const Task& task, const Cost& cost);

/// The conditions besides its shape that a matmul's time depends on.
struct ProductRun {
  double rate = 1.0;  ///< over the rate at the highest clocks
  int held_sms = 0;   ///< multiprocessors that others hold
  /// Elements of the operands' and the result's rows in memory, or'ed; 0 = whole lines.
  int64_t row_widths = 0;
};

/// Returns seconds of one matmul [m, k] x [k, n] that moves at least `bytes`, without its launch.
/// Throws Error if the device has no such rate.
double gemm_seconds(int64_t m, int64_t n, int64_t k, double bytes, Precision precision,
                    const Machine& machine, const ProductRun& run = {});

/// Returns seconds of reading and writing `bytes` in one kernel, without its launch.
double memory_seconds(double bytes, const Machine& machine);

/// What a task's time depends on besides its operands.
struct TaskRun {
  bool is_first = true;        ///< what accumulates from the first microbatch on overwrites
  bool casts = true;           ///< a matmul of few bits casts its first input
  bool casts_weights = false;  ///< and its weights, in the first microbatch
  bool is_low = false;         ///< communication of inputs of such matmuls
  int held_sms = 0;            ///< multiprocessors that a message holds
};

/// Seconds of one plan's tasks; the layouts of its groups are found once.
class TaskTimes {
 public:
  /// All must outlive it.
  TaskTimes(const GroupTable& groups, const Machine& machine, const PriceOptions& options);

  /// Returns seconds of a compute task or a collective, with its launch.
  double seconds(const Task& task, const Cost& cost, const TaskRun& run) const;

  /// Returns the outermost level of the fabric that a collective takes; 0 for a compute task.
  int link(const Task& task) const;

  /// Counts `runs` runs of a task at the highest clocks. REQUIRES: no clock is set yet.
  void add_power(const Task& task, const Cost& cost, const TaskRun& run, double runs,
                 PowerUse& use) const;

  /// Sets the clocks from now on, over the highest clocks; before, tasks are timed at the highest.
  void set_clock(double clock) { clock_ = clock; }

 private:
  Precision computes_in(const Task& task, const Cost& cost) const;
  double bytes_of(const Task& task, const Cost& cost, bool is_first) const;
  double memory_bound_seconds(const Task& task, const Cost& cost, double bytes) const;
  double compute_seconds(const Task& task, const Cost& cost, const TaskRun& run) const;
  double product_seconds(const Task& task, const Cost& cost, double bytes,
                         const TaskRun& run) const;
  double cast_seconds(const Task& task, const Cost& cost, const TaskRun& run) const;
  double attention_seconds(const Cost& cost, double bytes, int held_sms) const;
  double task_communication_seconds(const Task& task, const Cost& cost, bool is_low) const;
  double message_seconds(double bytes, const GroupLayout& group) const;

  const Machine& machine_;
  const PriceOptions& options_;
  std::vector<GroupLayout> layouts_;  // by group
  std::vector<double> exposed_;       // by group: the share of time that nothing hides
  std::vector<bool> sums_gradients_;  // by group
  int tp_group_ = -1;
  double clock_ = 1.0;
};

}  // namespace tokamak::price
