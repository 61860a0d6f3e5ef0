// The part of a named tensor that a rank holds, as initial values, checkpoints and Hugging Face
// files see buckets and shards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/graph/state.h"

namespace tokamak {

/// Elements `begin` up to `end` of the row-major order of a box of a tensor, and the State that
/// holds them one after the other from element `offset` on.
struct TensorPiece {
  std::string tensor;  ///< as StateDecl::name of the whole: "model.norm.weight", "optimizer.m.NAME"
  TensorType type;     ///< of the whole tensor
  StateKind kind = StateKind::kParameter;
  Init init;
  Dims box_begin;
  Dims box_end;
  int64_t begin = 0;
  int64_t end = 0;
  StateId state;
  int64_t offset = 0;
  /// Among ranks that hold the same elements exactly one owns them: it writes them to checkpoints.
  bool is_owner = true;
  /// A row of a table of delayed scales: a checkpoint may lack it, and then it starts empty.
  bool is_delayed_scale = false;

  int64_t numel() const { return end - begin; }
};

/// Returns every checkpointed State as one whole piece, as in a run of one rank.
std::vector<TensorPiece> whole_pieces(const StateTable& states);

}  // namespace tokamak
