// Seconds of one Task on a machine, alone. Formulas: docs/pricing.md.
#pragma once

#include <vector>

#include "tokamak/plan/plan.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/price/task/collective_time.h"
#include "tokamak/price/task/step_clock.h"

namespace tokamak::price {

/// What a price may change about a plan that is not made yet.
struct PriceOptions {
  Precision linear = Precision::kBf16;  ///< of products inside blocks
  bool device_graphs = true;            ///< kernels are launched by captured graphs
  /// Tensor parallel ranks that all hold what a pipeline's message says each send a part of it, and
  /// gather the rest.
  bool splits_messages = false;
  /// Blocks of the model for one of the plan's: power limits clocks in the step of the whole model.
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

/// "GEMM", "attention", "memory-bound", "exposed communication", "host", "bubble", "optimizer".
std::string_view name_of(Category category);

/// What a task's time counts as where nothing hides it.
Category category_of(const Task& task, const Cost& cost);

/// What a product's time depends on besides its shape.
struct ProductRun {
  double rate = 1.0;  ///< over that at the highest clocks
  int held_sms = 0;   ///< multiprocessors that others hold
  /// Elements of the operands' and the result's rows in memory, or'ed; 0 = whole lines.
  int64_t row_widths = 0;
};

/// One product [m, k] x [k, n] with `bytes` moved at least, without its launch. Throws Error where
/// the device has no such rate.
double gemm_seconds(int64_t m, int64_t n, int64_t k, double bytes, Precision precision,
                    const Machine& machine, const ProductRun& run = {});

/// Of reading and writing `bytes` in one kernel, without its launch.
double memory_seconds(double bytes, const Machine& machine);

/// What a task's time depends on besides its operands.
struct TaskRun {
  bool is_first = true;        ///< what accumulates from the first microbatch on overwrites
  bool casts = true;           ///< a product of few bits brings its first input there
  bool casts_weights = false;  ///< and its weights, in the first microbatch
  bool is_low = false;         ///< communication of what such products read
  int held_sms = 0;            ///< multiprocessors that a message holds
};

/// Seconds of one plan's tasks; the layouts of its groups are found once.
class TaskTimes {
 public:
  /// All must outlive it.
  TaskTimes(const GroupTable& groups, const Machine& machine, const PriceOptions& options);

  /// Of a compute task or a collective, with its launch.
  double seconds(const Task& task, const Cost& cost, const TaskRun& run) const;

  /// The outermost level of the fabric that a collective takes; 0 for a compute task.
  int link(const Task& task) const;

  /// Counts `runs` runs of a task at the highest clocks. REQUIRES: no clock is set yet.
  void add_power(const Task& task, const Cost& cost, const TaskRun& run, double runs,
                 PowerUse& use) const;

  /// The clocks from now on, over the highest, at which tasks are timed at first.
  void set_clock(double clock) { clock_ = clock; }

 private:
  Precision computes_in(const Task& task, const Cost& cost) const;
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
