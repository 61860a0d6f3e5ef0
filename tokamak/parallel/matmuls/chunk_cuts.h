// Into which chunks of rows a matmul is cut whose input is gathered, or whose output is summed,
// chunk by chunk beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// A matmul [rows, k] x [k, n] and the collective of tensor parallelism before or after it.
struct ChunkedWork {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  double bytes_sent = 0.0;  ///< by each rank, for all rows
  int blocks = 1;           ///< of equally many rows, of which chunks consist
  bool gathers = false;     ///< the collective comes before the matmul and brings its rows
};

/// Returns the chunks in order, as numbers of blocks, with which the matmul and its collectives end
/// first on an H100: few enough that tiles fill whole waves, and the bare one small. One chunk of
/// all blocks is whole.
std::vector<int> fastest_chunks(const ChunkedWork& work);

/// Returns `count` chunks of about equally many blocks, at most one for each block.
std::vector<int> equal_chunks(int blocks, int count);

/// Returns the chunks of a matmul and its collective, of as many `blocks` of one sample: `count`
/// equal ones, or, if it is 0, those that seem fastest.
std::vector<int> chunks_of(const Graph& graph, const Node& matmul, const Node& collective,
                           int64_t blocks, int count);

/// Whether a node is a matmul of a block's layer whose rows may be computed apart: of values, not
/// of 8-bit codes, which have common scales.
bool has_plain_rows(const Node& node);

/// Returns some rows of a dense value, all dims but the last being rows: a view.
Value rows_from(Graph& g, Value x, int64_t begin, int64_t end);

}  // namespace tokamak
