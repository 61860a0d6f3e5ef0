// Graphs of a few ops between random operands, for op_benchmark.
#pragma once

#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/train/bench/op_benchmark.h"

namespace tokamak {

/// How an operand is filled.
struct OperandFill {
  enum class Kind : uint8_t {
    kNormal,    ///< N(0, 1)
    kPositive,  ///< its absolute value
    kOnes,
    kBelow,  ///< integers in [0, limit)
    kCount,  ///< 0, 1, .. limit - 1, again and again
  };

  StateId state;
  Kind kind = Kind::kNormal;
  int64_t limit = 1;
};

/// Adds copies of a scene to a graph, each with its own operands.
class SceneBuilder {
 public:
  SceneBuilder(StateTable& states, Graph& graph, DType dtype)
      : states_(states), graph_(graph), dtype_(dtype) {}

  /// These make operands of the scene's dtype, of fp32, and of i32.
  Value normal(const Dims& dims) { return operand({.dtype = dtype_, .dims = dims}); }

  Value f32(const Dims& dims, OperandFill::Kind kind = OperandFill::Kind::kNormal) {
    return operand({.dtype = DType::kF32, .dims = dims}, kind);
  }

  Value i32(const Dims& dims, OperandFill::Kind kind, int64_t limit) {
    return operand({.dtype = DType::kI32, .dims = dims}, kind, limit);
  }

  Value operand(const TensorType& type, OperandFill::Kind kind = OperandFill::Kind::kNormal,
                int64_t limit = 1);

  /// Returns the op's outputs, which are kept.
  template <Op T>
  std::vector<Value> run(T op, std::vector<Value> in) {
    std::vector<Value> out = graph_.add(std::move(op), std::move(in));
    graph_.roots.insert(graph_.roots.end(), out.begin(), out.end());
    return out;
  }

  /// Makes `value` add into an operand, as gradients of parameters do.
  /// REQUIRES: can_accumulate(value).
  void accumulate(Value value);

  DType dtype() const { return dtype_; }

  const std::vector<OperandFill>& fills() const { return fills_; }

 private:
  StateTable& states_;
  Graph& graph_;
  DType dtype_;
  std::vector<OperandFill> fills_;
};

/// Returns scenes of a linear layer and its gradients in low precision, which are a group.
std::vector<OpScene> low_precision_scenes();

}  // namespace tokamak
