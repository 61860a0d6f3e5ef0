#include "tokamak/checkpoint/formats/weights.h"

#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/checkpoint/test_tensors.h"

namespace tokamak {
namespace {

using testing::pattern;
using testing::ScratchFolder;
using testing::write_text;

TEST(Weights, open_every_kind) {
  const ScratchFolder folder;
  const std::vector<TensorSource> meta{
      pattern("norm.weight", DType::kF32, {8}),
      pattern("layers.0.attention.wq.weight", DType::kF32, {8, 8})};
  write_safetensors(folder.path() / "consolidated.safetensors", meta);
  const Weights from_meta(folder.path());
  const auto hf = from_meta.sources({.num_heads = 2, .num_kv_heads = 1});
  ASSERT_EQ(hf.size(), 2U);
  EXPECT_EQ(hf[0].name, "model.layers.0.self_attn.q_proj.weight");

  CheckpointWriter writer(folder.path() / "run", 3);
  for (const TensorSource& tensor : hf) writer.add(tensor);
  writer.add(pattern("optimizer.exp_avg.model.norm.weight", DType::kF32, {8}));
  const ShardSummary shard = writer.finish_shard();
  const auto step = writer.commit(
      std::vector{shard}, {.step = 3, .resumable = true, .config_digest = "", .sections = {}});
  const Weights from_checkpoint(step);
  const auto again = from_checkpoint.sources({});
  ASSERT_EQ(again.size(), 2U);
  for (size_t i = 0; i < hf.size(); ++i) EXPECT_EQ(read_all(again[i]), read_all(hf[i]));
}

TEST(Weights, refuse_what_they_cannot_read) {
  const ScratchFolder folder;
  EXPECT_ERROR(Weights(folder.path() / "absent"), "there is no file or folder");
  write_text(folder.path() / "m.pth", std::string("PK\x03\x04", 4));
  EXPECT_ERROR(Weights(folder.path() / "m.pth"), "is a Python pickle");
  write_text(folder.path() / "m.bin", "neither this nor that");
  EXPECT_ERROR(Weights(folder.path() / "m.bin"), "not a safetensors file");
  EXPECT_ERROR(Weights(folder.path() / std::string(300, 'n')), "there is no file or folder");
}

}  // namespace
}  // namespace tokamak
