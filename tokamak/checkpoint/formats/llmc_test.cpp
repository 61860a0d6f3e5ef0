#include "tokamak/checkpoint/formats/llmc.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;
using testing::values_of;
using testing::write_text;

constexpr int32_t kGpt2 = 20240326;
constexpr int32_t kLlama = 20240803;

// A file whose weights count up from 0 in the order of the file.
std::string file_of(std::vector<int32_t> header, int64_t num_floats) {
  header.resize(256);
  std::vector<float> weights(num_floats);
  std::iota(weights.begin(), weights.end(), 0.0F);
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
         std::string(reinterpret_cast<const char*>(weights.data()), weights.size() * 4);
}

LlmcModel parse(const std::string& file) {
  return parse_llmc_header(std::as_bytes(std::span(file)), std::ssize(file), "gpt2.bin");
}

TensorSource named(const std::vector<TensorSource>& tensors, const std::string& name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorSource& tensor) { return tensor.name == name; });
  if (it == tensors.end()) throw Error("absent: " + name);
  return *it;
}

// 3 positions, vocabulary 5 padded to 8, 2 layers, 1 head, 2 channels.
const std::vector<int32_t> kGpt2Header{kGpt2, 3, 3, 5, 2, 1, 2, 8};
constexpr int64_t kGpt2Floats = 16 + 6 + 2 * (2 + 2 + 12 + 6 + 4 + 2 + 2 + 2 + 16 + 8 + 16 + 2) + 4;

TEST(Llmc, gpt2_weights_get_names_and_layouts_of_hugging_face) {
  const ScratchFolder folder;
  const auto path = folder.path() / "gpt2.bin";
  write_text(path, file_of(kGpt2Header, kGpt2Floats));
  EXPECT_TRUE(is_llmc_model(path));
  const LlmcFile file(path);
  EXPECT_EQ(file.model().vocab_size, 5);
  EXPECT_EQ(file.model().num_layers, 2);
  const auto tensors = file.sources();
  EXPECT_EQ(tensors.size(), 2U + 2 * 12 + 2);
  EXPECT_EQ(named(tensors, "transformer.wte.weight").dims, (Dims{5, 2}));
  EXPECT_EQ(values_of(named(tensors, "transformer.wpe.weight"))[0], 16.0F);
  EXPECT_EQ(values_of(named(tensors, "transformer.h.1.ln_1.weight"))[0], 24.0F);
  const TensorSource qkv = named(tensors, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(qkv.dims, (Dims{2, 6}));
  EXPECT_EQ(values_of(qkv), (std::vector<float>{30, 32, 34, 36, 38, 40, 31, 33, 35, 37, 39, 41}));
  EXPECT_EQ(named(tensors, "transformer.h.1.mlp.c_proj.weight").dims, (Dims{8, 2}));
  EXPECT_EQ(values_of(named(tensors, "transformer.ln_f.bias"))[1],
            static_cast<float>(kGpt2Floats - 1));
}

TEST(Llmc, llama3_weights_are_split_and_permuted) {
  // 2 layers, 2 heads and 1 key-value head of 4, hidden 6.
  std::vector<int32_t> header{kLlama, 3, 16, 5, 2, 2, 1, 8, 1, 256, 0, 500000, 1};
  const int64_t num_floats = 40 + 2 * (8 + 16 * 8 + 64 + 8 + 3 * 48) + 8 + 40;
  const ScratchFolder folder;
  write_text(folder.path() / "llama3.bin", file_of(header, num_floats));
  const LlmcFile file(folder.path() / "llama3.bin");
  EXPECT_EQ(file.model().ffn_hidden, 6);
  EXPECT_EQ(file.model().rope_theta, 500000);
  EXPECT_TRUE(file.model().use_scaled_rope);
  const auto tensors = file.sources();
  EXPECT_EQ(tensors.size(), 1U + 2 * 9 + 2);
  const float qkv = 40 + 16;
  const auto q = values_of(named(tensors, "model.layers.0.self_attn.q_proj.weight"));
  ASSERT_EQ(q.size(), 64U);
  EXPECT_EQ(q[8], qkv + 2 * 8);
  EXPECT_EQ(q[16], qkv + 1 * 8);
  const auto k = values_of(named(tensors, "model.layers.0.self_attn.k_proj.weight"));
  EXPECT_EQ(k[8], qkv + 10 * 8);
  const auto v = values_of(named(tensors, "model.layers.0.self_attn.v_proj.weight"));
  EXPECT_EQ(v[8], qkv + 13 * 8);
  EXPECT_EQ(named(tensors, "model.layers.1.mlp.down_proj.weight").dims, (Dims{8, 6}));
}

TEST(Llmc, lying_headers_are_refused) {
  const auto with = [](size_t index, int32_t value) {
    auto header = kGpt2Header;
    header[index] = value;
    return file_of(header, kGpt2Floats);
  };
  EXPECT_EQ(parse(file_of(kGpt2Header, kGpt2Floats)).channels, 2);
  EXPECT_ERROR(parse("short"), "too few for an llm.c model");
  EXPECT_ERROR(parse(with(0, 20240520)), "magic number 20240520, wanted 20240326");
  EXPECT_ERROR(parse(with(1, 1)), "llm.c version 1; wanted 3");
  EXPECT_ERROR(parse(with(4, -2)), "num_layers is -2");
  EXPECT_ERROR(parse(with(7, 4)), "padded_vocab_size 4 is less than vocab_size 5");
  EXPECT_ERROR(parse(with(4, 2147483647)), "implies");
  EXPECT_ERROR(parse(with(6, 2147483647)), "overflows");
  EXPECT_ERROR(parse(file_of(kGpt2Header, kGpt2Floats - 1)), "implies 696 bytes");
  std::vector<int32_t> llama{kLlama, 3, 16, 5, 2147483647, 2, 1, 2147483644, 1, 256, 0, 500000, 1};
  EXPECT_ERROR(parse(file_of(llama, 10)), "too few for 2147483647 layers");
  llama[7] = 7;
  EXPECT_ERROR(parse(file_of(llama, 10)), "do not divide");
}

}  // namespace
}  // namespace tokamak
