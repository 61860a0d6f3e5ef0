// Of ranks with equal work, the one whose groups lie worst in the fabric: a step goes at its pace.
#pragma once

#include "tokamak/graph/mesh.h"
#include "tokamak/price/machine.h"

namespace tokamak {

/// Its place among the ranks of a stage (the same in all stages), by what its tensor-parallel and
/// its context-parallel group take; the first of equals, first of its tensor-parallel group.
/// Domains of 72 hold no whole number of groups of 16: one of them lies in two racks.
int slowest_place(const Mesh& mesh, const price::Machine& machine);

}  // namespace tokamak
