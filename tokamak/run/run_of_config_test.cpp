#include "tokamak/run/run_of_config.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

TEST(SpecOf, says_the_length_that_a_run_trains_where_it_is_longer) {
  for (const auto& [seq_len, positions] : {std::pair{1024, 4096}, std::pair{16384, 16384}}) {
    Config config;
    config.model.name = "llama2";
    config.model.flavor = "debugmodel";
    config.training.seq_len = seq_len;
    EXPECT_EQ(spec_of(config).max_seq_len, positions);
  }
}

// What a rotation scales from stays what it was.
TEST(SpecOf, keeps_the_lengths_that_rope_scales_from) {
  const std::pair<std::string, int64_t> cases[] = {
      {R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})", 200},
      {R"({"rope_type": "yarn", "factor": 4.0})", 200},
      {R"({"rope_type": "llama3", "factor": 4.0})", 200},
      {R"({"rope_type": "linear", "factor": 4.0})", 200},
      {R"({"rope_type": "dynamic", "factor": 4.0})", 64}};
  for (const auto& [rope, positions] : cases) {
    const testing::ScratchFolder folder;
    write_file_atomic(
        folder.path() / "config.json",
        R"({"model_type": "llama", "vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1,
                          "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64,
                          "rope_scaling": )" +
            rope + "}");
    Config config;
    config.model.flavor = "hf";
    config.model.hf_assets_path = folder.path().string();
    config.training.seq_len = 8;
    const ModelSpec shorter = spec_of(config);
    EXPECT_EQ(shorter.max_seq_len, 64);
    config.training.seq_len = 200;
    const ModelSpec longer = spec_of(config);
    EXPECT_EQ(longer.max_seq_len, positions) << rope;
    EXPECT_EQ(longer.rope.scaling, shorter.rope.scaling) << rope;
  }
}

}  // namespace
}  // namespace tokamak
