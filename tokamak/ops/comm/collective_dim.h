// Gathering and scattering along a dim of a tensor: by the collective itself, or with a copy.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// The members' x, which are alike, one after the other along `dim`.
Value gather_dim(Graph& g, Value x, int dim, const CommGroup& group);

/// The sum over members of this rank's part of x along `dim`, of which each member has as much.
Value sum_scatter_dim(Graph& g, Value x, int dim, const CommGroup& group);

}  // namespace tokamak
