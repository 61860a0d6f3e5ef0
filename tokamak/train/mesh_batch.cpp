#include "tokamak/train/mesh_batch.h"

#include <algorithm>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

int at(const MeshCoordinates& coordinates, MeshAxis axis) {
  return coordinates[axis];
}

}  // namespace

int64_t dp_index(const Mesh& mesh, int rank) {
  const MeshCoordinates place = mesh.coordinates(rank);
  return int64_t{at(place, MeshAxis::kDpReplicate)} * mesh.degree(MeshAxis::kDpShard) +
         at(place, MeshAxis::kDpShard);
}

RowShare row_share(const Mesh& mesh, int rank, int64_t global_batch_size) {
  const int64_t dp = mesh.degree(MeshAxis::kDpReplicate) * mesh.degree(MeshAxis::kDpShard);
  TOK_CHECK(global_batch_size % dp == 0, "{} rows on {} ranks", global_batch_size, dp);
  const int64_t num_rows = global_batch_size / dp;
  return {.first_row = dp_index(mesh, rank) * num_rows, .num_rows = num_rows};
}

int64_t SequenceShare::position(int64_t i) const {
  if (!head_and_tail) return rank * local_len() + i;
  const int64_t chunk = local_len() / 2;
  return i < chunk ? rank * chunk + i : (2 * num_ranks - 1 - rank) * chunk + (i - chunk);
}

SequenceShare sequence_share(const Mesh& mesh, int rank, int64_t seq_len, int64_t padded_len,
                             bool head_and_tail) {
  const int cp = mesh.degree(MeshAxis::kCp);
  const SequenceShare share{.seq_len = seq_len,
                            .padded_len = padded_len,
                            .num_ranks = cp,
                            .rank = at(mesh.coordinates(rank), MeshAxis::kCp),
                            .head_and_tail = head_and_tail && cp > 1};
  const int64_t cuts = share.head_and_tail ? 2 * cp : cp;
  TOK_CHECK(seq_len > 0 && padded_len >= seq_len && padded_len % cuts == 0,
            "{} tokens padded to {} in {} chunks", seq_len, padded_len, cuts);
  return share;
}

LocalBatch local_batch(const Batch& batch, const SequenceShare& share) {
  TOK_CHECK(batch.seq_len == share.seq_len, "{} of {}", batch.seq_len, share.seq_len);
  const int64_t length = share.local_len();
  const auto numel = static_cast<size_t>(batch.rows * length);
  LocalBatch local{.tokens = std::vector<int32_t>(numel, 0),
                   .labels = std::vector<int32_t>(numel, kIgnoreIndex),
                   .positions = std::vector<int32_t>(numel)};
  const int64_t last = share.num_positions > 0 ? share.num_positions - 1 : share.padded_len;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t position = share.position(i);
    for (int64_t r = 0; r < batch.rows; ++r) {
      const auto to = static_cast<size_t>(r * length + i);
      local.positions[to] = static_cast<int32_t>(std::min(position, last));
      if (position >= share.seq_len) continue;
      const auto from = static_cast<size_t>(r * share.seq_len + position);
      local.tokens[to] = batch.tokens[from];
      local.labels[to] = batch.labels[from];
    }
  }
  return local;
}

int64_t count_labels(const Batch& batch) {
  return std::ranges::count_if(batch.labels, [](int32_t label) { return label != kIgnoreIndex; });
}

bool counts_rows(const Mesh& mesh, int rank) {
  const MeshCoordinates place = mesh.coordinates(rank);
  return at(place, MeshAxis::kPp) == 0 && at(place, MeshAxis::kCp) == 0 &&
         at(place, MeshAxis::kTp) == 0;
}

}  // namespace tokamak
