// Pieces of tensors as streams of elements, as initial values, checkpoints and weight files write
// them to a rank's State and read them from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/checkpoint/slice.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/exec/executor.h"
#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

/// Returns which elements of its tensor the piece holds.
Slice slice_of(const TensorPiece& piece);

/// Returns, for each segment of the plan, whether it writes any byte of the pieces.
std::vector<bool> segments_that_write(const Plan& plan, const StateLayout& layout,
                                      std::span<const TensorPiece> pieces);

/// A piece and its elements in order (one dim, of the tensor's dtype).
struct PieceSource {
  TensorPiece piece;
  TensorSource elements;
};

/// Returns once all work enqueued has ended, and reads every piece of `kind` part by part when it
/// is asked to, from any threads at once: nothing may change the State until then. `owned_only`
/// leaves replicas out.
std::vector<PieceSource> read_pieces(const StateAccess& access, std::span<const TensorPiece> pieces,
                                     StateKind kind, bool owned_only);

/// Writes the piece's elements from `first` on, counted from the piece's first, in order with the
/// work of stream 0.
void write_piece(const StateAccess& access, const TensorPiece& piece, int64_t first,
                 std::span<const std::byte> elements);

/// Fills the piece from the whole tensor, converting to the piece's dtype. Reads only the rows
/// (of the outermost dim) that the piece touches. REQUIRES: `tensor` has the piece's dims.
void load_piece(const StateAccess& access, const TensorPiece& piece, const TensorSource& tensor);

}  // namespace tokamak
