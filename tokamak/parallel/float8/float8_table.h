// The table of delayed scales of one rank's graph: its rows, the maxima of a step, its update.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

/// The role of an operand in the three matmuls of a weight.
enum class Float8Role : uint8_t { kX, kW, kG };

/// Returns the part of a weight's name that names its matmul: "q_proj" of
/// "model.layers.0.self_attn.q_proj.weight".
std::string float8_module(std::string_view weight);

/// Returns the modules of the marked matmuls by block, in the graph's order; block -1 is the
/// head's.
std::map<int32_t, std::vector<std::string>> float8_modules(const Graph& graph);

/// Whether the graph ends with an optimizer's update, as validation's does not.
bool has_optimizer(const Graph& graph);

/// Returns the name of an operand of `module`'s matmuls in `block`, as "layers.3.qkv.g"; a negative
/// block is the head's.
std::string float8_site(const Float8Recipe& recipe, int32_t block, const std::string& module,
                        Float8Role role);

/// Rows are named by block, matmul and role, as "fp8.layers.3.qkv.g" or "fp8.head.g"; matmuls of
/// one input have one name ("qkv", "gate_up") where they share scales, and always for x. The rows
/// are State "fp8.table", of which each row is a window; those of weights come first.
class Float8Table {
 public:
  /// `from` is the graph whose marked matmuls have the rows. A graph without an update, as that of
  /// validation, reads rows that a training graph over the same State has declared. With
  /// `has_scales` each row has a scale whenever the graph runs.
  Float8Table(const Graph& from, const Float8Recipe& recipe, bool has_scales);

  /// Returns the row of an operand of `module`'s matmuls in `to.label`'s block.
  Value row(Graph& to, const std::string& module, Float8Role role) const;

  /// Returns the rows of all weights, f32 [num_weights, 1 + history_len].
  Value weight_rows(Graph& to) const;

  /// Returns the place among them of the row of `module`'s weight in `block`.
  int64_t weight_row(const Graph& to, int32_t block, const std::string& module) const;

  /// Returns f32 [count] that stands in the place of maxima which are taken for want of a scale.
  /// REQUIRES: has_scales(), so that nothing depends on it.
  Value no_maxima(Graph& to, int64_t count) const;

  /// Keeps the maximum of an operand for the end of the step; training graphs only.
  void stage(Graph& to, const std::string& module, Float8Role role, Value amax);

  /// Emits the nodes that gather maxima of the forward if `label` is of the backward.
  void end_forward(Graph& to, const Label& label);

  /// Emits the rest of the nodes that gather maxima and takes the greatest of all `replicas`.
  /// Returns `sum`, that of squared gradients, with NaN added if one of them is not finite:
  /// quantized values under a scale of earlier steps clamp an infinity, so that no gradient tells
  /// of it.
  Value take_maxima(Graph& to, Value sum, const CommGroup& replicas);

  /// Emits the update of the table. `factor` is that of the optimizer.
  /// REQUIRES: take_maxima() was called.
  void finish(Graph& to, Value factor);

  bool has_update() const { return has_update_; }

  bool has_scales() const { return has_scales_; }

  int64_t num_weights() const { return num_weights_; }

 private:
  struct Pending {
    Label label;
    std::map<int, std::vector<Value>> amax;  // by row
  };

  std::string name_of(int32_t block, const std::string& module, Float8Role role) const;
  StateId window_of(const Graph& to, const std::string& name) const;
  template <class Ends>
  void flush_if(Graph& to, const Ends& ends);
  void flush(Graph& to, Pending& pending);

  Float8Recipe recipe_;
  bool has_update_ = false;
  bool has_scales_ = false;
  int64_t num_weights_ = 0;
  std::vector<std::string> rows_;
  std::map<std::string, int> row_of_;
  std::vector<Pending> pending_;
  std::set<int> staged_;  // first rows of runs
  Value maxima_;          // of all replicas
};

}  // namespace tokamak
