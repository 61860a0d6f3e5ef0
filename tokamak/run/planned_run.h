// A run decided but not yet allocated: graphs, layout and plans. --dry-run prints it and a trainer
// binds it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "tokamak/plan/compile.h"
#include "tokamak/plan/transports.h"
#include "tokamak/run/training_graph.h"

namespace tokamak {

/// Whether plans replay device graphs; kAuto: those do for which is_launch_bound() holds.
enum class DeviceGraphs : uint8_t { kNever, kAuto, kAlways };

/// Masters and moments in host memory, which updates read and write over the device's link.
struct OffloadOptions {
  bool enable = false;
  /// With a limit only those that keep the plan's device memory at or below it; else all.
  std::optional<int64_t> device_bytes;
};

struct RunShape {
  TrainingGraphOptions training;
  std::optional<TrainingGraphOptions>
      validation;  ///< its batch and seq_len; absent = no validation
  /// False: only validation is planned, and gradients and moments take no memory.
  bool trains = true;
  RecomputePolicy recompute;
  DeviceGraphs device_graphs = DeviceGraphs::kNever;  ///< of a GPU
  CopyEngines copy_engines = CopyEngines::kNever;     ///< of GPUs
  OffloadOptions offload;
  DistributeOptions distribute;  ///< batches above are this rank's rows of a microbatch
};

/// Returns `seq_len` rounded up so that cp and tp cut it evenly; the tail is padding.
int64_t padded_seq_len(int64_t seq_len, const Mesh& mesh);

/// The graphs of a mesh as a whole, before ranks take their parts.
class WholeGraphs {
 public:
  /// `shape` may be of any rank of the mesh.
  WholeGraphs(const ModelSpec& config, const RunShape& shape, const Target& target);
  WholeGraphs(const WholeGraphs&) = delete;
  WholeGraphs& operator=(const WholeGraphs&) = delete;

  const StateTable& states() const { return states_; }

  const Graph& training() const { return training_; }

  const std::vector<NodePlacement>& training_placements() const { return training_placements_; }

  const Graph* validation() const { return validation_ ? &*validation_ : nullptr; }

  /// Says for people what was decided about matmuls.
  const std::vector<std::string>& notes() const { return notes_; }

  /// See PlannedRun::precision_line().
  const std::string& precision_line() const { return precision_line_; }

 private:
  StateTable states_;
  Graph training_;
  std::vector<NodePlacement> training_placements_;
  std::optional<Graph> validation_;
  std::vector<std::string> notes_;
  std::string precision_line_;
};

/// One rank's run. It cannot be moved, because graphs refer to the State table.
class PlannedRun {
 public:
  PlannedRun(const ModelSpec& config, const RunShape& shape, const Target& target);

  /// Plans from graphs that ranks share. REQUIRES: `whole` describes this model, mesh and target.
  PlannedRun(const ModelSpec& config, const RunShape& shape, const Target& target,
             const WholeGraphs& whole);
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const ModelSpec& config() const { return config_; }

  const RunShape& shape() const { return shape_; }

  const StateTable& states() const { return states_; }

  const StateLayout& layout() const { return layout_; }

  const StepState& step() const { return step_; }

  /// REQUIRES: the shape trains.
  const Plan& plan() const { return *plan_; }

  /// Returns the plan of steps before which a row of delayed scales has no scale, null under other
  /// recipes: it also takes maxima for want of one. It shares State and arenas with plan(), and
  /// gives the same bits where all rows have scales.
  const Plan* plan_without_scales() const {
    return plan_without_scales_ ? &*plan_without_scales_ : nullptr;
  }

  /// Says for people what was decided besides the plan's variants.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Sums up for people what is in low precision; "" if nothing is.
  const std::string& precision_line() const { return precision_line_; }

  /// REQUIRES: the shape has validation.
  const StepState& validation_step() const { return validation_step_; }

  const Plan* validation_plan() const { return validation_plan_ ? &*validation_plan_ : nullptr; }

  /// Returns the plan that makes compute copies from the masters, for whenever these were written
  /// from outside; later updates maintain the copies. Null where there are none.
  const Plan* copies_plan() const { return copies_plan_ ? &*copies_plan_ : nullptr; }

  /// Returns the parts of tensors that this rank holds.
  const std::vector<TensorPiece>& pieces() const { return pieces_; }

  const Mesh& mesh() const { return shape_.distribute.mesh; }

  int rank() const { return shape_.distribute.rank; }

  /// Returns the plans that a rank binds.
  std::vector<const Plan*> plans() const;

  /// Returns the bytes of the device that binding allocates.
  int64_t peak_bytes() const;

  int64_t host_bytes() const { return layout_.host_bytes; }

 private:
  const LowPrecision& low_precision() const { return shape_.distribute.low_precision; }

  void lay_out_states(std::span<const StateId> in_host = {});
  std::vector<Plan*> made_plans();
  void plan_training(const LoweredStep& graphs, const CompileOptions& options,
                     const std::vector<UpdateUnit>& units);
  std::vector<StateId> offloaded(const std::vector<UpdateUnit>& units, int64_t bytes) const;
  void plan_one_rank(const Target& target);
  void plan_of_mesh(const Target& target, const WholeGraphs& whole);
  void plan_copies(const std::vector<UpdateUnit>& units, const Target& target);
  void finish(const Target& target);

  ModelSpec config_;
  RunShape shape_;
  StateTable states_;
  std::vector<TensorPiece> pieces_;
  StateLayout layout_;
  StepState step_;
  StepState validation_step_;
  std::optional<Plan> plan_;
  std::optional<Plan> plan_without_scales_;
  std::optional<Plan> validation_plan_;
  std::optional<Plan> copies_plan_;
  std::vector<std::string> notes_;
  std::string precision_line_;
};

/// Returns the bytes of the device that binding a rank's plans allocates; they share their arenas.
/// `validation` may be null.
int64_t peak_bytes(const Plan& plan, const Plan* validation);

/// Returns "memory by owner" as a table for people, in GiB and bytes, with its sum.
std::string memory_table(const PlannedRun& run);

}  // namespace tokamak
