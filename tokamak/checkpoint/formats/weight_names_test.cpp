#include "tokamak/checkpoint/formats/weight_names.h"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/checkpoint/transform.h"

namespace tokamak {
namespace {

using testing::floats;
using testing::oracle;
using testing::pattern;
using testing::sources_of;
using testing::values_of;

std::vector<float> counting(int64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

// Any way of cutting a read gives the same elements.
void expect_cuts_agree(const TensorSource& tensor) {
  const auto all = read_all(tensor);
  const int64_t width = size_of(tensor.dtype);
  for (int64_t step = 1; step <= tensor.type().numel(); ++step) {
    std::vector<std::byte> got(all.size());
    for (int64_t first = 0; first < tensor.type().numel(); first += step) {
      const int64_t count = std::min(step, tensor.type().numel() - first);
      tensor.read(first, std::span(got).subspan(first * width, count * width));
    }
    ASSERT_EQ(got, all) << "in steps of " << step;
  }
}

TEST(Transform, transposes) {
  const TensorSource t = transposed(floats("w", {2, 3}, counting(6)));
  EXPECT_EQ(t.dims, (Dims{3, 2}));
  EXPECT_EQ(values_of(t), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  expect_cuts_agree(transposed(floats("w", {5, 7}, counting(35))));
  expect_cuts_agree(transposed(pattern("w", DType::kBF16, {4, 9})));
  const TensorSource big = pattern("w", DType::kF32, {1300, 1700});
  EXPECT_EQ(read_all(transposed(transposed(big))), read_all(big));
}

TEST(Transform, cuts_rows_and_casts) {
  const TensorSource t = floats("w", {4, 2}, counting(8));
  EXPECT_EQ(values_of(rows_of(t, 1, 2)), (std::vector<float>{2, 3, 4, 5}));
  const TensorSource bf16 = cast(t, DType::kBF16);
  EXPECT_EQ(bf16.dtype, DType::kBF16);
  EXPECT_EQ(values_of(cast(bf16, DType::kF32)), counting(8));
  expect_cuts_agree(bf16);
  EXPECT_ERROR(cast(pattern("ids", DType::kI64, {1}), DType::kF32),
               "tensor \"ids\": cannot convert");
}

// The inverse of neighbours_to_halves.
TensorSource halves_to_neighbours(const TensorSource& tensor, int64_t num_heads) {
  const std::vector<std::byte> rows = read_all(tensor);
  const int64_t row_bytes = std::ssize(rows) / tensor.dims[0];
  const int64_t half = tensor.dims[0] / num_heads / 2;
  std::vector<std::byte> turned(rows.size());
  for (int64_t row = 0; row < tensor.dims[0]; ++row) {
    const int64_t in_head = row % (2 * half);
    const int64_t from = row - in_head + in_head % 2 * half + in_head / 2;
    std::memcpy(turned.data() + row * row_bytes, rows.data() + from * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  TensorSource out = tensor;
  out.read = [turned, size = size_of(tensor.dtype)](int64_t first, std::span<std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(bytes.data(), turned.data() + first * size, bytes.size());
  };
  return out;
}

// A tensor of a Hugging Face Llama as Meta has it.
TensorSource to_meta(const TensorSource& tensor, const HeadCounts& heads) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"model.layers", "layers"},
      {"model.embed_tokens", "tok_embeddings"},
      {"model.norm", "norm"},
      {"lm_head", "output"},
      {"self_attn.q_proj", "attention.wq"},
      {"self_attn.k_proj", "attention.wk"},
      {"self_attn.v_proj", "attention.wv"},
      {"self_attn.o_proj", "attention.wo"},
      {"mlp.gate_proj", "feed_forward.w1"},
      {"mlp.down_proj", "feed_forward.w2"},
      {"mlp.up_proj", "feed_forward.w3"},
      {"input_layernorm", "attention_norm"},
      {"post_attention_layernorm", "ffn_norm"}};
  std::string name = tensor.name;
  for (const auto& [hf, meta] : kParts) {
    if (const size_t at = name.find(hf); at != std::string::npos) name.replace(at, hf.size(), meta);
  }
  const bool is_q = name.find(".wq.") != std::string::npos;
  if (!is_q && name.find(".wk.") == std::string::npos) return renamed(tensor, name);
  return renamed(halves_to_neighbours(tensor, is_q ? heads.num_heads : heads.num_kv_heads), name);
}

TEST(Transform, rope_rows_follow_the_formula) {
  // view(heads, head/2, 2, in).transpose(1, 2) with 2 heads of 4 rows.
  const TensorSource meta = floats("wq", {8, 1}, counting(8));
  const TensorSource hf = neighbours_to_halves(meta, 2);
  EXPECT_EQ(values_of(hf), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(values_of(halves_to_neighbours(hf, 2)), counting(8));
  const TensorSource wide = floats("wk", {12, 5}, counting(60));
  expect_cuts_agree(neighbours_to_halves(wide, 2));
  EXPECT_EQ(values_of(halves_to_neighbours(neighbours_to_halves(wide, 2), 2)), counting(60));
  EXPECT_ERROR(neighbours_to_halves(wide, 4), "are not 4 heads of even size");
}

TEST(WeightNames, meta_and_hugging_face_names_are_one_to_one) {
  EXPECT_EQ(hf_name_of_meta("layers.31.feed_forward.w2.weight"),
            "model.layers.31.mlp.down_proj.weight");
  EXPECT_EQ(hf_name_of_meta("output.weight"), "lm_head.weight");
  EXPECT_FALSE(hf_name_of_meta("layers.x.attention.wq.weight"));
  EXPECT_FALSE(hf_name_of_meta("layers.1"));
  EXPECT_FALSE(hf_name_of_meta("model.norm.weight"));
  EXPECT_EQ(hf_name_of_meta("layers.0.attention_norm.weight"),
            "model.layers.0.input_layernorm.weight");
}

TEST(WeightNames, a_model_survives_the_trip_to_meta_and_back) {
  const SafetensorsFile file(oracle("llama_tiny") / "model.safetensors");
  const auto hf = sources_of(file.tensors());
  const HeadCounts heads{.num_heads = 4, .num_kv_heads = 2};
  std::vector<TensorSource> meta;
  for (const TensorSource& tensor : hf) meta.push_back(to_meta(tensor, heads));
  EXPECT_TRUE(has_meta_names(meta));
  EXPECT_FALSE(has_meta_names(hf));
  const auto back = to_hf_weights(meta, heads);
  ASSERT_EQ(back.size(), hf.size());
  for (size_t i = 0; i < hf.size(); ++i) {
    EXPECT_EQ(back[i].name, hf[i].name);
    EXPECT_EQ(read_all(back[i]), read_all(hf[i]));
  }
}

TEST(WeightNames, gpt2_names_get_their_prefix_and_lose_their_masks) {
  const std::vector<TensorSource> bare{pattern("wte.weight", DType::kF32, {2, 2}),
                                       pattern("h.0.attn.bias", DType::kBool, {1}),
                                       pattern("h.0.attn.masked_bias", DType::kF32, {}),
                                       pattern("h.0.attn.c_attn.bias", DType::kF32, {3}),
                                       pattern("transformer.ln_f.bias", DType::kF32, {1})};
  const auto got = to_hf_weights(bare, {});
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].name, "transformer.wte.weight");
  EXPECT_EQ(got[1].name, "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(got[2].name, "transformer.ln_f.bias");
}

TEST(WeightNames, names_of_a_model_without_a_head_get_their_prefix) {
  const std::vector<TensorSource> bare{pattern("layers.0.input_layernorm.weight", DType::kF32, {2}),
                                       pattern("embed_tokens.weight", DType::kF32, {2, 2}),
                                       pattern("norm.weight", DType::kF32, {2}),
                                       pattern("lm_head.weight", DType::kF32, {2, 2})};
  EXPECT_FALSE(has_meta_names(bare));
  const auto got = to_hf_weights(bare, {});
  ASSERT_EQ(got.size(), 4U);
  EXPECT_EQ(got[0].name, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(got[1].name, "model.embed_tokens.weight");
  EXPECT_EQ(got[2].name, "model.norm.weight");
  EXPECT_EQ(got[3].name, "lm_head.weight");
}

TEST(WeightNames, text_models_lose_the_prefix_that_sets_them_apart) {
  const std::vector<std::vector<const char*>> spellings{
      {"language_model.model.layers.0.mlp.up_proj.weight", "language_model.lm_head.weight",
       "vision_tower.vision_model.head.probe", "multi_modal_projector.mm_soft_emb_norm.weight"},
      {"model.language_model.layers.0.mlp.up_proj.weight", "lm_head.weight",
       "model.vision_tower.head.probe", "model.multi_modal_projector.mm_soft_emb_norm.weight"},
      {"language_model.layers.0.mlp.up_proj.weight", "lm_head.weight", "vision_tower.head.probe",
       "multi_modal_projector.mm_soft_emb_norm.weight"}};
  for (const auto& names : spellings) {
    std::vector<TensorSource> tensors;
    for (const char* name : names) tensors.push_back(pattern(name, DType::kF32, {2}));
    const auto got = to_hf_weights(tensors, {});
    ASSERT_EQ(got.size(), 4U);
    EXPECT_EQ(got[0].name, "model.layers.0.mlp.up_proj.weight");
    EXPECT_EQ(got[1].name, "lm_head.weight");
    EXPECT_TRUE(is_for_images(got[2].name) && is_for_images(got[3].name));
    EXPECT_FALSE(is_for_images(got[0].name) || is_for_images(got[1].name));
  }
}

TEST(WeightNames, strangers_are_refused) {
  const HeadCounts heads{.num_heads = 1, .num_kv_heads = 1};
  const std::vector<TensorSource> mixed{pattern("norm.weight", DType::kF32, {2}),
                                        pattern("layers.0.attention.wq.bias", DType::kF32, {2}),
                                        pattern("rope.freqs", DType::kF32, {2})};
  EXPECT_ERROR(to_hf_weights(mixed, heads),
               "\"layers.0.attention.wq.bias\" is not a tensor name of Meta");
}

}  // namespace
}  // namespace tokamak
