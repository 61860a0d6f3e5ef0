#include "tokamak/parallel/tensor_piece.h"

namespace tokamak {

std::vector<TensorPiece> whole_pieces(const StateTable& states) {
  std::vector<TensorPiece> pieces;
  for (int32_t i = 0; i < states.size(); ++i) {
    const StateDecl& decl = states[{i}];
    if (!decl.is_checkpointed()) continue;
    pieces.push_back({.tensor = decl.name,
                      .type = decl.type,
                      .kind = decl.kind,
                      .init = decl.init,
                      .box_begin = Dims(decl.type.dims.size(), 0),
                      .box_end = decl.type.dims,
                      .end = decl.type.numel(),
                      .state = {i}});
  }
  return pieces;
}

}  // namespace tokamak
