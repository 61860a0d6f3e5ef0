// The workspace of EmbeddingGrad's GPU kernel, which its rules size and its kernel fills.
#pragma once

#include <cstdint>

namespace tokamak {

/// A table row's tokens are summed in pieces of this many, and then the pieces are summed.
inline constexpr int64_t kEmbeddingPiece = 64;

/// Offsets in bytes for N tokens, V rows of D sums of `sum_bytes` each; all parts except the last
/// are int32.
struct EmbeddingGradLayout {
  int64_t counts = 0;   ///< [V]: tokens of each row
  int64_t cursors = 0;  ///< [8]: lengths of the lists below; zeroed with `counts`
  int64_t starts = 0;   ///< [V]: where a row's tokens begin in `members`
  int64_t tickets = 0;  ///< [N]: a token's place in its row, in any order; then `members` in order
  int64_t members = 0;  ///< [N]: tokens by row, in any order
  int64_t pieces = 0;   ///< [N][4]: row, first place, tokens, row of `sums` or -1
  int64_t heavy = 0;    ///< [N / kEmbeddingPiece][4]: rows of several pieces
  int64_t sums = 0;     ///< [2 N / kEmbeddingPiece, D]: of the pieces of heavy rows
  int64_t bytes = 0;

  constexpr EmbeddingGradLayout(int64_t N, int64_t V, int64_t D, int64_t sum_bytes) {
    int64_t at = 0;
    const auto place = [&](int64_t size) {
      const int64_t begin = at;
      at += (size + 255) / 256 * 256;
      return begin;
    };
    counts = place(4 * V);
    cursors = place(4 * 8);
    starts = place(4 * V);
    tickets = place(4 * N);
    members = place(4 * N);
    pieces = place(16 * N);
    heavy = place(16 * (N / kEmbeddingPiece));
    sums = place(2 * N / kEmbeddingPiece * D * sum_bytes);
    bytes = at;
  }
};

}  // namespace tokamak
