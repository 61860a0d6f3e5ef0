// Into which chunks matmuls beside a collective are cut.
#include "tokamak/parallel/matmuls/chunk_cuts.h"

#include <numeric>

#include <gtest/gtest.h>

namespace tokamak {
namespace {

constexpr int64_t kDim = 16384;  // of Llama 405B
constexpr int64_t kMlp = 53248;
constexpr int kTp = 8;

ChunkedWork gathered(int64_t rows, int64_t n) {
  return {.rows = rows,
          .n = n,
          .k = kDim,
          .bytes_sent = 2.0 * static_cast<double>(rows * kDim) * (kTp - 1) / kTp,
          .blocks = 16,
          .gathers = true};
}

ChunkedWork summed(int64_t rows, int64_t k) {
  ChunkedWork work = gathered(rows, kDim);
  work.k = k;
  work.gathers = false;
  return work;
}

TEST(ChunkCuts, cover_all_blocks) {
  for (const ChunkedWork& work : {gathered(4096, 2 * kMlp / kTp), summed(4096, kMlp / kTp)}) {
    const std::vector<int> chunks = fastest_chunks(work);
    EXPECT_GT(chunks.size(), 1U);
    EXPECT_EQ(std::accumulate(chunks.begin(), chunks.end(), 0), work.blocks);
  }
}

// The first gather and the last sum have no matmul to run beside.
TEST(ChunkCuts, leave_the_smallest_chunk_bare) {
  const std::vector<int> in = fastest_chunks(gathered(8192, 2 * kMlp / kTp));
  EXPECT_LT(in.front(), in.back());
  const std::vector<int> out = fastest_chunks(summed(8192, kMlp / kTp));
  EXPECT_GT(out.front(), out.back());
}

// Tiles of 13 waves for 2,048 rows of 26,624 columns become those of 14 for any two chunks.
TEST(ChunkCuts, leave_whole_what_would_take_another_wave) {
  ChunkedWork work = gathered(2048, 2 * kMlp / 4);
  work.bytes_sent *= 0.1;
  EXPECT_EQ(fastest_chunks(work), std::vector<int>{16});
  EXPECT_EQ(fastest_chunks(summed(128, 64)), std::vector<int>{16});
}

TEST(ChunkCuts, equal_chunks_differ_by_one_block) {
  EXPECT_EQ(equal_chunks(16, 4), std::vector<int>({4, 4, 4, 4}));
  EXPECT_EQ(equal_chunks(5, 3), std::vector<int>({2, 2, 1}));
  EXPECT_EQ(equal_chunks(2, 8), std::vector<int>({1, 1}));
}

}  // namespace
}  // namespace tokamak
