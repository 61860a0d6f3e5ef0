#include "tokamak/run/flops.h"

#include <gtest/gtest.h>

namespace tokamak {
namespace {

// Published with NeMo 24.09's recipe: 8192 x 2,650,791,739,392 FLOPs a sequence, of 16 groups of
// keys and a vocabulary of 128,256.
TEST(Flops, CountAsNemo) {
  ModelSpec model = flavor_spec("llama3", "405B");
  model.num_kv_heads = 16;
  EXPECT_DOUBLE_EQ(nemo_flops_per_token(model, 8192), 2650791739392.0);
  EXPECT_DOUBLE_EQ(nemo_flops_per_token(model, 8192) - megatron_flops_per_token(model, 8192),
                   6.0 * 126 * 16384 * 8192)
      << "half of the pairs of queries and keys";
}

// GPT: 72 L h^2 (1 + s / 6h) + 6 h V (arXiv 2104.04473, nothing recomputed).
TEST(Flops, CountGptAsMegatronsPaper) {
  const ModelSpec model = flavor_spec("gpt3", "175B");
  const double h = 12288.0;
  const double s = 2048.0;
  EXPECT_DOUBLE_EQ(nemo_flops_per_token(model, 2048),
                   72.0 * 96.0 * h * h * (1.0 + s / (6.0 * h)) + 6.0 * h * 50257.0);
}

TEST(Flops, DifferFromTorchtitansInWhatIsNoProduct) {
  const ModelSpec model = flavor_spec("llama3", "8B");
  const double all = flops_per_token(flops_shape(model, 8192));
  const double norms = 6.0 * (2.0 * 32 + 1) * 4096;
  EXPECT_DOUBLE_EQ(all - nemo_flops_per_token(model, 8192), norms);
}

}  // namespace
}  // namespace tokamak
