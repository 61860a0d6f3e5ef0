#include "tokamak/parallel/matmuls/chunk_cuts.h"

#include <algorithm>

#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"

namespace tokamak {
namespace {

// These are rates of an H100: of a large matmul, of the links between the GPUs of a host beside
// kernels, and of copies.
constexpr double kFlopsPerSecond = 700e12;
constexpr double kBytesPerSecond = 250e9;
constexpr double kCopiedBytesPerSecond = 2.9e12;
// A collective begins and passes round in this time, whatever its size, and kernels of a chunk are
// launched in this time.
constexpr double kCollectiveSeconds = 40e-6;
constexpr double kChunkSeconds = 8e-6;
// Matmuls beside a collective are so much slower.
constexpr double kSlowdown = 0.25;
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 128;
constexpr int64_t kTilesAtOnce = 132;
constexpr int kMostChunks = 4;
// Another kernel and another collective are worth at least this share of the time.
constexpr double kLeastGain = 0.01;

int64_t count_of(int64_t size, int64_t step) {
  return (size + step - 1) / step;
}

double matmul_seconds(const ChunkedWork& work, int64_t rows) {
  const int64_t tiles = count_of(rows, kTileRows) * count_of(work.n, kTileColumns);
  const int64_t waves = count_of(tiles, kTilesAtOnce);
  return 2.0 * static_cast<double>(waves * kTilesAtOnce * kTileRows * kTileColumns) *
             static_cast<double>(work.k) / kFlopsPerSecond +
         kChunkSeconds;
}

double seconds_of(const ChunkedWork& work, const std::vector<int>& chunks) {
  double computed_s = 0.0;  // when the matmuls so far have ended
  double sent_s = 0.0;      // when the collectives so far have ended
  double hidden_s = 0.0;
  for (const int blocks : chunks) {
    const double share = static_cast<double>(blocks) / work.blocks;
    const double matmul_s = matmul_seconds(work, work.rows * blocks / work.blocks);
    const double collective_s = kCollectiveSeconds + share * work.bytes_sent / kBytesPerSecond;
    if (work.gathers) {
      hidden_s += std::clamp(computed_s - sent_s, 0.0, collective_s);
      sent_s += collective_s;
      computed_s = std::max(computed_s, sent_s) + matmul_s;
    } else {
      computed_s += matmul_s;
      hidden_s += std::clamp(sent_s - computed_s + matmul_s, 0.0, matmul_s);
      sent_s = std::max(sent_s, computed_s) + collective_s;
    }
  }
  const double copied = static_cast<double>(2 * 2 * work.rows * work.n);
  const bool copies = work.gathers && chunks.size() > 1;
  return std::max(computed_s, sent_s) + kSlowdown * hidden_s +
         (copies ? copied / kCopiedBytesPerSecond : 0.0);
}

// Tries all ways to cut the `left` last blocks after `chunks`.
void search(const ChunkedWork& work, int left, std::vector<int>& chunks, double& least_s,
            std::vector<int>& best) {
  chunks.push_back(left);
  const double whole_s = seconds_of(work, chunks);
  if (whole_s < least_s * (1.0 - (chunks.size() > 1 ? kLeastGain : 0.0))) {
    least_s = whole_s;
    best = chunks;
  }
  chunks.pop_back();
  if (std::ssize(chunks) + 1 == kMostChunks) return;
  for (int first = 1; first < left; ++first) {
    chunks.push_back(first);
    search(work, left - first, chunks, least_s, best);
    chunks.pop_back();
  }
}

}  // namespace

std::vector<int> fastest_chunks(const ChunkedWork& work) {
  std::vector<int> best;
  std::vector<int> chunks;
  double least_s = 1e30;
  search(work, work.blocks, chunks, least_s, best);
  return best;
}

std::vector<int> equal_chunks(int blocks, int count) {
  count = std::clamp(count, 1, blocks);
  std::vector<int> chunks(count, blocks / count);
  for (int i = 0; i < blocks % count; ++i) ++chunks[i];
  return chunks;
}

std::vector<int> chunks_of(const Graph& graph, const Node& matmul, const Node& collective,
                           int64_t blocks, int count) {
  if (count > 0) return equal_chunks(static_cast<int>(blocks), count);
  const Cost product = node_cost(graph, matmul);
  const Cost moved = node_cost(graph, collective);
  return fastest_chunks({.rows = product.m,
                         .n = product.n,
                         .k = product.k,
                         .bytes_sent = moved.bytes_sent,
                         .blocks = static_cast<int>(blocks),
                         .gathers = moved.collective == Cost::Collective::kAllGather});
}

bool has_plain_rows(const Node& node) {
  if (node.is_leaf() || node.label.block < 0 || !node.accumulations.empty()) return false;
  if (const auto* linear = node.as<Linear>()) return !linear->float8;
  const auto* gradient = node.as<LinearGradInput>();
  return gradient != nullptr && !gradient->float8;
}

Value rows_from(Graph& g, Value x, int64_t begin, int64_t end) {
  const Value rows = g.apply(Reshape{.dims = {-1, g.type(x).dims.back()}}, {x});
  return g.apply(SliceRows{.begin = begin, .end = end}, {rows});
}

}  // namespace tokamak
