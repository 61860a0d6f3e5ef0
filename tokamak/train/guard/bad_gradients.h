// Which parameters' gradients are not finite after a step whose loss is.
#pragma once

#include <span>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"
#include "tokamak/graph/state.h"
#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

/// Returns the State that holds the gradient of a parameter's State, element by element, after a
/// step; invalid if there is none.
StateId gradient_of(const StateTable& states, StateId parameter);

/// Reads the gradients that the last step has left in State, summed over the microbatches and the
/// ranks that share the parameter, which takes as long as a copy of them to the host. Returns
/// ": the gradients of model.layers.1.wo.weight and of 3 before it in the model (rank 2 node4) are
/// not finite", where the named parameter is the first that the backward pass came to, for
/// each kind of rank; or "" if all are finite. Collective; all ranks return the same.
std::string gradients_not_finite(World& world, const StateAccess& access,
                                 std::span<const TensorPiece> pieces);

}  // namespace tokamak
