// The parameters of one graph: declares master weights as State and returns their compute copies.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// One parameter as a graph uses it.
struct Parameter {
  StateId state;
  StateId copy;   ///< invalid where `compute` is not a copy
  Value compute;  ///< the master itself, or its cast or copy in the compute dtype
};

class Parameters {
 public:
  /// Masters in another dtype are cast once per step, or have copies as State ("copy.NAME").
  Parameters(Graph& graph, DType master, DType compute, bool has_copies = false)
      : graph_(graph), master_(master), compute_(compute), has_copies_(has_copies) {}

  /// Asking twice for a name gives the same value, which is how weights are tied.
  Value weight(const std::string& name, Dims dims, Axes axes, Init init);

  const std::vector<Parameter>& all() const { return all_; }

 private:
  Value compute_value(const Parameter& parameter);

  Graph& graph_;
  DType master_;
  DType compute_;
  bool has_copies_;
  std::map<std::string, Value> by_name_;
  std::vector<Parameter> all_;
};

}  // namespace tokamak
