#include "tokamak/checkpoint/formats/hf_weights.h"

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"

namespace tokamak {
namespace {

using testing::pattern;
using testing::ScratchFolder;
using testing::write_text;

std::vector<TensorSource> some() {
  return {pattern("z", DType::kF32, {10}, 1), pattern("a", DType::kF32, {20}, 2),
          pattern("m", DType::kBF16, {4, 4}, 3), pattern("huge", DType::kF32, {100}, 4)};
}

void expect_same(const HfWeights& weights, std::span<const TensorSource> tensors) {
  EXPECT_EQ(weights.sources().size(), tensors.size());
  for (const TensorSource& tensor : tensors) {
    EXPECT_EQ(read_all(source_of(*weights.find(tensor.name))), read_all(tensor)) << tensor.name;
  }
}

TEST(HfWeights, one_file_or_shards_hold_the_same) {
  const ScratchFolder folder;
  save_hf_weights(folder.path(), some());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model.safetensors"));
  expect_same(HfWeights(folder.path()), some());
  expect_same(HfWeights(folder.path() / "model.safetensors"), some());

  save_hf_weights(folder.path(), some(), {.max_file_bytes = 120, .metadata = {{"format", "pt"}}});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "model.safetensors"));
  const auto index =
      parse_weight_index(read_file(folder.path() / "model.safetensors.index.json"), "index");
  EXPECT_EQ(index.at("z"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.at("a"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.at("m"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index.at("huge"), "model-00003-of-00003.safetensors");
  expect_same(HfWeights(folder.path()), some());
}

TEST(HfWeights, a_broken_folder_is_refused_by_name) {
  const ScratchFolder folder;
  const auto index = folder.path() / "model.safetensors.index.json";
  EXPECT_ERROR(HfWeights(folder.path() / "absent"), "there is no file or folder");
  EXPECT_ERROR(HfWeights(folder.path()), "wanted model.safetensors");
  write_text(folder.path() / "model-00001-of-00002.safetensors", "");
  EXPECT_ERROR(HfWeights(folder.path()), "but not the index of its shards");
  std::filesystem::rename(folder.path() / "model-00001-of-00002.safetensors",
                          folder.path() / "model.fp16.safetensors");
  EXPECT_ERROR(HfWeights(folder.path()), "got model.fp16.safetensors: name the file itself");
  write_text(folder.path() / "adapter_model.safetensors", "");
  EXPECT_ERROR(HfWeights(folder.path()), "changes to another model");
  write_text(folder.path() / "pytorch_model.bin", "");
  EXPECT_ERROR(HfWeights(folder.path()), "got pytorch_model.bin");
  save_hf_weights(folder.path(), some(), {.max_file_bytes = 120, .metadata = {}});
  const std::string good = read_file(index);

  write_text(index, "{}");
  EXPECT_ERROR(HfWeights(folder.path()), "wanted an object \"weight_map\"");
  write_text(index, R"({"weight_map":{"a":"../x"}})");
  EXPECT_ERROR(HfWeights(folder.path()),
               "wanted the name of a file in the same folder, got \"../x\"");
  write_text(index, R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_ERROR(HfWeights(folder.path()), "given twice");
  write_text(index, R"({"weight_map":{"b":"model-00001-of-00003.safetensors"}})");
  EXPECT_ERROR(HfWeights(folder.path()), "tensor \"b\" is not in its shard");
  write_text(index, good);
  std::filesystem::remove(folder.path() / "model-00002-of-00003.safetensors");
  EXPECT_ERROR(HfWeights(folder.path()), "shard \"model-00002-of-00003.safetensors\" is absent");
}

TEST(HfWeights, a_pointer_of_git_lfs_is_known) {
  const ScratchFolder folder;
  write_text(folder.path() / "model.safetensors",
             "version https://git-lfs.example/spec/v1\noid sha256:00\nsize 13476851\n");
  EXPECT_ERROR(HfWeights(folder.path()), "a pointer of Git LFS");
}

TEST(HfWeights, shards_may_not_repeat_a_tensor) {
  const ScratchFolder folder;
  write_safetensors(folder.path() / "consolidated.00.safetensors", some());
  expect_same(HfWeights(folder.path()), some());
  write_safetensors(folder.path() / "consolidated.01.safetensors", some());
  EXPECT_ERROR(HfWeights(folder.path()), "is in several files");
}

}  // namespace
}  // namespace tokamak
