// Parameters of one graph: declares master weights as State and hands out their compute copies.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// One parameter as a graph uses it.
struct Parameter {
  StateId state;
  Value compute;  ///< the master itself, or its cast to the compute dtype, made once a step
};

class Parameters {
 public:
  Parameters(Graph& graph, DType master, DType compute)
      : graph_(graph), master_(master), compute_(compute) {}

  /// Asking twice for a name gives the same value: that is how weights are tied.
  Value weight(const std::string& name, Dims dims, Axes axes, Init init);

  const std::vector<Parameter>& all() const { return all_; }

 private:
  Graph& graph_;
  DType master_;
  DType compute_;
  std::map<std::string, Value> by_name_;
  std::vector<Parameter> all_;
};

}  // namespace tokamak
