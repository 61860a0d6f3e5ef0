// What config.json of an export says to readers of either spelling.
#include <array>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/json.h"
#include "tokamak/models/hf_config.h"

namespace tokamak {
namespace {

Json exported(const ModelSpec& spec) {
  return parse_json(to_hf_config(spec, DType::kBF16, {.bos = 1, .eos = 2}), "c");
}

ModelSpec read_back(const Json& json) {
  return parse_hf_config(json.dump(), "c");
}

ModelSpec found(const std::string& members) {
  return parse_hf_config(
      R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 176, "vocab_size": 512, "head_dim": 16,)" +
          members + "}",
      "c");
}

void expect_same_rotation(const ModelSpec& got, const ModelSpec& want, const std::string& name) {
  for (const int64_t layer : {int64_t{0}, want.num_layers - 1})
    EXPECT_EQ(rope_of(got, layer), rope_of(want, layer)) << name << ", layer " << layer;
}

// A reader that knows one spelling does not see the other.
void expect_both_spellings(const ModelSpec& spec, const std::string& name) {
  Json of_old = exported(spec);
  Json of_new = of_old;
  of_old.erase("rope_parameters");
  for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) of_new.erase(key);
  expect_same_rotation(read_back(exported(spec)), spec, name);
  expect_same_rotation(read_back(of_old), spec, name + " of old");
  expect_same_rotation(read_back(of_new), spec, name + " of new");
}

TEST(HfExport, says_rope_of_every_flavor_in_both_spellings) {
  for (const std::string& name : model_names()) {
    for (const std::string& flavor : flavors_of(name)) {
      const ModelSpec spec = flavor_spec(name, flavor);
      if (learned_positions(spec) > 0) continue;
      expect_both_spellings(spec, name + " " + flavor);
    }
  }
}

constexpr std::array kScaled{
    R"("rope_type": "linear", "factor": 3.0)", R"("rope_type": "dynamic", "factor": 2.0)",
    R"("rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32)",
    R"("rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "mscale": 1.2, "mscale_all_dim": 0.7)",
    R"("rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
       "short_factor": [1, 1.5, 1, 1, 1, 1, 1, 1], "long_factor": [2, 2, 2, 2, 2, 2, 2, 4])"};

TEST(HfExport, gives_what_was_read_in_one_spelling_the_other) {
  for (const char* scaling : kScaled) {
    const ModelSpec of_old = found(fmt::format(
        R"("model_type": "llama", "rope_theta": 5e5, "rope_scaling": {{{}}})", scaling));
    const ModelSpec of_new = found(fmt::format(
        R"("model_type": "mistral", "rope_parameters": {{"rope_theta": 5e5, {}}})", scaling));
    EXPECT_EQ(of_old.rope.scaling.kind, of_new.rope.scaling.kind);
    expect_both_spellings(of_old, scaling);
    expect_both_spellings(of_new, scaling);
    const Json json = exported(of_new);
    EXPECT_FALSE(json["rope_scaling"].contains("rope_theta")) << scaling;
    EXPECT_EQ(json["rope_theta"], 5e5) << scaling;
  }
}

TEST(HfExport, gives_both_thetas_of_gemma3_both_spellings) {
  expect_both_spellings(found(R"("model_type": "gemma3_text", "rope_theta": 2e5,
      "rope_local_base_freq": 300, "rope_scaling": {"rope_type": "linear", "factor": 8})"),
                        "old");
  expect_both_spellings(found(R"("model_type": "gemma3_text", "rope_parameters": {"full_attention":
      {"rope_type": "linear", "factor": 8, "rope_theta": 2e5}, "sliding_attention": {"rope_theta": 300}})"),
                        "new");
}

TEST(HfExport, has_no_scaling_where_none_is) {
  const ModelSpec spec =
      found(R"("model_type": "llama", "rope_scaling": {"rope_type": "default"})");
  EXPECT_FALSE(exported(spec).contains("rope_scaling"));
  EXPECT_FALSE(exported(flavor_spec("qwen3", "0.6B")).contains("rope_scaling"));
}

// transformers 4.57 looks for it there alone.
TEST(HfExport, says_the_original_length_of_longrope_outside) {
  const Json json = exported(found(fmt::format(
      R"("model_type": "llama", "max_position_embeddings": 256, "rope_parameters": {{{}}})",
      kScaled.back())));
  EXPECT_EQ(json["original_max_position_embeddings"], 64);
  EXPECT_EQ(json["max_position_embeddings"], 256);
}

TEST(HfExport, says_its_dtype_in_both_spellings) {
  for (const char* key : {R"("dtype": "float16",)", R"("torch_dtype": "float16",)", ""}) {
    const Json json = exported(found(fmt::format(R"({} "model_type": "qwen2")", key)));
    EXPECT_EQ(json["dtype"], "bfloat16") << key;
    EXPECT_EQ(json["torch_dtype"], "bfloat16") << key;
  }
  EXPECT_EQ(exported(flavor_spec("gpt2", "124M"))["torch_dtype"], "bfloat16");
}

// transformers 4.57 takes "gelu" at its word, and 5 for the approximation that it stands for.
TEST(HfExport, names_the_gelu_of_the_first_gemmas) {
  EXPECT_EQ(exported(found(R"("model_type": "gemma", "hidden_act": "gelu")"))["hidden_act"],
            "gelu_pytorch_tanh");
}

// Some of its scalings do not find the width of a head in transformers 4.57 otherwise.
TEST(HfExport, says_the_width_of_a_head) {
  const ModelSpec spec = parse_hf_config(
      R"({"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
          "intermediate_size": 176, "vocab_size": 512})",
      "c");
  EXPECT_EQ(exported(spec)["head_dim"], 8);
}

TEST(HfExport, says_which_layers_have_a_window) {
  const Json full_and_sliding = Json::array({"full_attention", "sliding_attention"});
  EXPECT_EQ(exported(found(R"("model_type": "qwen2", "use_sliding_window": true,
      "sliding_window": 9, "max_window_layers": 1)"))["layer_types"],
            full_and_sliding);
  const Json json = exported(found(R"("model_type": "gemma3_text", "sliding_window_pattern": 1)"));
  EXPECT_EQ(json["layer_types"], Json::array({"full_attention", "full_attention"}));
}

TEST(HfExport, has_limits_that_are_said) {
  const auto lines = [](const std::string& members, int64_t seq_len) {
    return limits_of_exports(found(members), seq_len);
  };
  const std::string dynamic =
      R"("model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0})";
  EXPECT_TRUE(lines(dynamic, 2048).empty());
  ASSERT_EQ(lines(dynamic, 2049).size(), 1U);
  EXPECT_NE(lines(dynamic, 2049)[0].find("max_position_embeddings = 2048"), std::string::npos);
  ASSERT_EQ(lines(R"("model_type": "gemma3_text", "rope_parameters": {"sliding_attention":
      {"rope_type": "linear", "factor": 2.0}, "full_attention": {}})",
                  8)
                .size(),
            1U);
  ModelSpec odd = found(R"("model_type": "llama")");
  odd.dim = 66;
  ASSERT_EQ(limits_of_exports(odd, 8).size(), 1U);
  EXPECT_NE(limits_of_exports(odd, 8)[0].find("no multiple of 4 heads"), std::string::npos);
  odd.family = &family_of("mistral");
  EXPECT_TRUE(limits_of_exports(odd, 8).empty());
}

TEST(HfExport, keeps_ids_and_members_of_others) {
  const ModelSpec spec = found(
      R"("model_type": "llama", "eos_token_id": [7, 8], "a_field_of_theirs": 3, "use_cache": false)");
  const Json json = exported(spec);
  EXPECT_EQ(json["eos_token_id"], Json::array({7, 8}));
  EXPECT_EQ(json["bos_token_id"], 1);
  EXPECT_EQ(json["a_field_of_theirs"], 3);
  EXPECT_EQ(json["use_cache"], false);
  EXPECT_EQ(parse_json(to_hf_generation_config(spec, {.bos = 1, .eos = 2}), "g")["eos_token_id"],
            Json::array({7, 8}));
}

}  // namespace
}  // namespace tokamak
