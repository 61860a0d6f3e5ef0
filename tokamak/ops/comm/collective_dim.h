// Gathers and scatters along a dim of a tensor, by the collective itself or with a copy.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Returns the members' x, which have one type, one after the other along `dim`.
Value gather_dim(Graph& g, Value x, int dim, const CommGroup& group);

/// Returns the sum over members of this rank's part of x along `dim`; all members' parts are equal.
Value sum_scatter_dim(Graph& g, Value x, int dim, const CommGroup& group);

}  // namespace tokamak
