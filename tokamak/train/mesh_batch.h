// Which rows and tokens of a global batch a rank computes on: pure functions of the mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "tokamak/data/loader.h"
#include "tokamak/graph/mesh.h"

namespace tokamak {

/// Returns the rank's place among those that read different data: dp_replicate * dp_shard degree +
/// dp_shard.
int64_t dp_index(const Mesh& mesh, int rank);

/// Rows of each global batch.
struct RowShare {
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

/// Ranks of the data-parallel world take rows in contiguous order. REQUIRES: the ranks divide the
/// rows.
RowShare row_share(const Mesh& mesh, int rank, int64_t global_batch_size);

/// Which tokens of each sequence a rank holds. Sequences are padded at the tail to a length that
/// their cuts divide.
struct SequenceShare {
  int64_t seq_len = 0;     ///< of the data
  int64_t padded_len = 0;  ///< of the graph over all ranks
  int num_ranks = 1;       ///< of context parallelism
  int rank = 0;
  /// Rank r of n takes chunks r and 2n-1-r of 2n; false: chunk r of n.
  bool head_and_tail = true;
  /// Positions of padding stay below this if the model has a table of positions; 0 = no table.
  int64_t num_positions = 0;

  int64_t local_len() const { return padded_len / num_ranks; }

  /// Returns the place of the rank's token `i` in the padded sequence.
  int64_t position(int64_t i) const;
};

/// REQUIRES: the context-parallel degree n divides padded_len; with `head_and_tail` 2n does.
SequenceShare sequence_share(const Mesh& mesh, int rank, int64_t seq_len, int64_t padded_len,
                             bool head_and_tail);

/// A rank's inputs, row by row: [rows, local_len()].
struct LocalBatch {
  std::vector<int32_t> tokens;     ///< 0 in the padding
  std::vector<int32_t> labels;     ///< kIgnoreIndex in the padding
  std::vector<int32_t> positions;  ///< in the padded sequence
};

LocalBatch local_batch(const Batch& batch, const SequenceShare& share);

/// Returns the number of labels of the batch that the loss counts.
int64_t count_labels(const Batch& batch);

/// Whether this rank's count enters the job's sum: that of one among ranks that read the same rows.
bool counts_rows(const Mesh& mesh, int rank);

}  // namespace tokamak
