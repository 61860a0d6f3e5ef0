// No member of a config.json that changes what a model computes is ignored.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/models/hf_config.h"

namespace tokamak {
namespace {

const std::vector<std::string> kTypes{"llama", "mistral", "qwen2",       "qwen3",
                                      "gemma", "gemma2",  "gemma3_text", "gpt2"};

ModelSpec parse_with(const std::string& type, const std::string& members) {
  const std::string text = fmt::format(
      R"({{"model_type": "{}", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4{}{}}})",
      type,
      type == "gpt2" ? ""
                     : R"(, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96)",
      members.empty() ? "" : ", " + members);
  return parse_hf_config(text, "config.json");
}

std::string error_with(const std::string& type, const std::string& members) {
  try {
    parse_with(type, members);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const std::string& type, const std::string& members, const std::string& part) {
  const std::string error = error_with(type, members);
  EXPECT_NE(error.find(part), std::string::npos) << type << ": " << members << ": " << error;
}

std::string name_of_first(const std::string& members) {
  return members.substr(0, members.find(':'));
}

// tools/compare_config_members.py --write asks both versions of transformers for them.
TEST(ConfigMembers, all_that_transformers_knows_are_known) {
  const Json table = parse_json(read_file(TOK_SOURCE_DIR "/tests/fixtures/config_members.json"),
                                "config_members.json");
  ASSERT_EQ(table.size(), kTypes.size());
  for (const auto& [type, versions] : table.items()) {
    ASSERT_EQ(versions.size(), 2);
    for (const auto& [version, defaults] : versions.items()) {
      const ModelSpec spec = parse_hf_config(defaults.dump(), "config.json");
      EXPECT_EQ(spec.unused_members, "") << type << " of " << version;
      // A member that is null says nothing, so its name needs a value to be judged.
      for (const auto& [name, value] : defaults.items()) {
        if (!value.is_null()) continue;
        Json other = defaults;
        other[name] = Json::object({{"a", 1}});
        try {
          EXPECT_EQ(parse_hf_config(other.dump(), "c").unused_members.find("\"" + name + "\""),
                    std::string::npos)
              << type << " of " << version;
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        }
      }
    }
  }
}

TEST(ConfigMembers, of_saved_models_are_known) {
  for (const auto& entry : std::filesystem::directory_iterator(TOK_SOURCE_DIR "/tests/oracles")) {
    const auto file = entry.path() / "config.json";
    if (!path_exists(file)) continue;
    EXPECT_EQ(parse_hf_config(read_file(file), file.string()).unused_members, "");
  }
}

TEST(ConfigMembers, of_nobody_give_one_line) {
  for (const std::string& type : kTypes) {
    const ModelSpec spec = parse_with(
        type,
        R"("unsloth_version": "1", "_name_or_path": "a/b", "not_there": null, "foo": {"a": 3})");
    EXPECT_NE(spec.unused_members.find(R"(does not know "foo", "unsloth_version": ignored)"),
              std::string::npos)
        << spec.unused_members;
  }
  EXPECT_NE(
      parse_with("llama", R"("rope_scaling": {"rope_type": "linear", "factor": 2, "alpha": 3})")
          .unused_members.find("\"rope_scaling.alpha\""),
      std::string::npos);
}

TEST(ConfigMembers, of_nobody_make_no_long_or_broken_line) {
  std::string members = R"("x\n\u001b[31m": 1)";
  for (int i = 0; i < 500; ++i) members += fmt::format(R"(, "m{}": 1)", i);
  const std::string line = parse_with("llama", members).unused_members;
  EXPECT_NE(line.find(" and 491 more: ignored"), std::string::npos) << line;
  EXPECT_LT(line.size(), 200U);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(parse_with("llama", R"("x\n": 1)").unused_members.find('\n'), std::string::npos);
}

TEST(ConfigMembers, of_other_maths_are_refused_by_name) {
  for (const std::string& type : kTypes) {
    for (const char* members : {R"("logit_scale": 0.25)",
                                R"("logits_scaling": 8.0)",
                                R"("embedding_multiplier": 12.0)",
                                R"("residual_multiplier": 0.22)",
                                R"("attention_multiplier": 0.0078125)",
                                R"("scale_emb": 12)",
                                R"("scale_depth": 1.4)",
                                R"("num_local_experts": 8)",
                                R"("num_experts": 64)",
                                R"("n_routed_experts": 64)",
                                R"("qk_layernorm": true)",
                                R"("use_qk_norm": true)",
                                R"("clip_qkv": 8.0)",
                                R"("alibi": true)",
                                R"("attention_chunk_size": 8192)",
                                R"("no_rope_layers": [1, 0])",
                                R"("per_layer_config": {"1": {"sliding_window": 3}})",
                                R"("pruned_heads": {"1": [0]})",
                                R"("is_causal": false)",
                                R"("is_causal": null)",
                                R"("use_bidirectional_attention": true)",
                                R"("quantization_config": {"quant_method": "fp8"})"})
      expect_refused(type, members, name_of_first(members));
    EXPECT_EQ(parse_with(type, R"("logit_scale": 1.0, "num_experts": 0, "qk_layernorm": false,
                                  "clip_qkv": null, "pruned_heads": {}, "per_layer_config": {},
                                  "is_causal": true, "use_bidirectional_attention": false)")
                  .unused_members,
              "");
  }
}

TEST(ConfigMembers, that_only_some_families_have_are_refused_in_the_others) {
  const std::tuple<const char*, const char*> cases[] = {
      {"llama", R"("sliding_window": 5)"},
      {"llama", R"("query_pre_attn_scalar": 3)"},
      {"gemma", R"("final_logit_softcapping": 1.0)"},
      {"gemma3_text", R"("final_logit_softcapping": 1.0)"},
      {"gemma3_text", R"("attn_logit_softcapping": 1.0)"},
      {"mistral", R"("attention_bias": true)"},
      {"mistral", R"("mlp_bias": true)"},
      {"qwen2", R"("attention_bias": false)"},
      {"qwen3", R"("mlp_bias": true)"},
      {"gpt2", R"("attention_bias": false)"},
      {"gpt2", R"("sliding_window": 5)"},
      {"qwen2", R"("use_mrope": true)"},
      {"llama", R"("hidden_activation": "gelu")"},
      {"qwen3", R"("activation_function": "relu")"},
      {"gemma2", R"("hidden_act": "relu")"},
      {"gemma", R"("hidden_activation": "gelu")"}};
  for (const auto& [type, members] : cases) expect_refused(type, members, name_of_first(members));
  EXPECT_EQ(error_with("llama", R"("use_sliding_window": false, "sliding_window": 5)"), "");
  EXPECT_EQ(
      error_with("gemma2", R"("hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh")"),
      "");
}

TEST(ConfigMembers, null_does_not_stand_for_true_or_a_size) {
  expect_refused("gpt2", R"("scale_attn_weights": null)", "\"scale_attn_weights\"");
  expect_refused("gemma", R"("tie_word_embeddings": null)", "\"tie_word_embeddings\"");
  expect_refused("gemma2", R"("sliding_window": null)", "\"sliding_window\" is null");
  const std::string qwen3 =
      R"({"model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": null})";
  EXPECT_THROW(parse_hf_config(qwen3, "c"), Error);
  EXPECT_EQ(error_with("gemma2", R"("sliding_window": null,
                                    "layer_types": ["full_attention", "full_attention"])"),
            "");
}

TEST(ConfigMembers, layer_types_are_read_or_must_agree) {
  const std::string mixed = R"("layer_types": ["sliding_attention", "full_attention"])";
  const std::string full = R"("layer_types": ["full_attention", "full_attention"])";
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(parse_with("mistral", R"("sliding_window": 7, )" + mixed).attention.windows,
            Windows({7, 0}));
  EXPECT_EQ(parse_with("mistral", R"("sliding_window": 7, )" + full).attention.windows,
            Windows({0, 0}));
  expect_refused("mistral", R"("sliding_window": null, )" + mixed, "\"layer_types\": layer 0");
  expect_refused("mistral", R"("sliding_window": 7, "use_sliding_window": false)",
                 "\"use_sliding_window\"");
  for (const char* type : {"llama", "gemma", "gpt2"}) {
    expect_refused(type, mixed, "\"layer_types\": layer 0");
    EXPECT_EQ(error_with(type, full), "");
  }
  ModelSpec spec = parse_with("mistral", R"("sliding_window": 7, )" + mixed);
  spec.hf_config.clear();
  EXPECT_EQ(parse_hf_config(to_hf_config(spec, DType::kF32, {}), "c").attention.windows,
            spec.attention.windows);
}

const std::string kYarn =
    R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})";

TEST(ConfigMembers, rope_scaling_counts_beside_rope_parameters) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"}) {
    const ModelSpec alone = parse_with(type, R"("rope_theta": 5e3, )" + kYarn);
    EXPECT_EQ(alone.rope.scaling.kind, RopeScaling::Kind::kYarn);
    for (const char* parameters :
         {R"("rope_parameters": {})", R"("rope_parameters": null)",
          R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e3})",
          R"("rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e3})"}) {
      const ModelSpec both =
          parse_with(type, fmt::format(R"({}, "rope_theta": 5e3, {})", parameters, kYarn));
      EXPECT_EQ(both.rope.scaling, alone.rope.scaling) << type << ": " << parameters;
      EXPECT_EQ(both.rope.theta, 5e3) << type << ": " << parameters;
      EXPECT_EQ(both.unused_members, "");
    }
  }
  const std::string by_layer =
      R"("rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e3},
         "sliding_attention": {"rope_type": "default", "rope_theta": 300}})";
  const ModelSpec gemma3 = parse_with(
      "gemma3_text", by_layer + R"(, "rope_theta": 5e3, "rope_local_base_freq": 300, )" + kYarn);
  EXPECT_EQ(gemma3.rope.scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(gemma3.rope.theta, 5e3);
  EXPECT_EQ(gemma3.attention.window_rope, RotarySpec{.theta = 300.0});
}

TEST(ConfigMembers, rope_that_says_two_things_is_refused) {
  const std::string parameters =
      R"("rope_parameters": {"rope_type": "default", "rope_theta": 300})";
  const std::pair<std::string, const char*> cases[] = {
      {parameters + R"(, "rope_theta": 500)",
       R"("rope_theta" is 500, but "rope_parameters" says 300)"},
      {parameters + R"(, "rope_theta": 500, )" + kYarn, R"("rope_parameters" says 300)"},
      {parameters + ", " + kYarn, R"("rope_theta" is 10000, but "rope_parameters" says 300)"},
      {R"("rope_theta": 500, "rope_scaling": {"rope_type": "linear", "factor": 2, "rope_theta": 300})",
       R"("rope_theta" is 500, but "rope_scaling" says 300)"},
      {R"("rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2})",
       R"("type" is "yarn", but "rope_type" is "linear")"},
      {R"("rope_scaling": {"factor": 2})", R"(no "rope_type")"},
      {R"("rope_parameters": {"full_attention": {"rope_theta": 300}})", R"(got "full_attention")"}};
  for (const auto& [members, part] : cases) expect_refused("qwen3", members, part);
  expect_refused("gemma3_text",
                 R"("rope_local_base_freq": 50,
                    "rope_parameters": {"sliding_attention": {"rope_theta": 30}})",
                 R"("rope_local_base_freq" is 50, but "sliding_attention" says 30)");
}

TEST(ConfigMembers, outside_of_a_text_model_are_judged_too) {
  const auto parse = [](const std::string& more) {
    return parse_hf_config(
        R"({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"a": 1},
            "mm_tokens_per_image": 4, "text_config": {"sliding_window": 9})" +
            more + "}",
        "c");
  };
  EXPECT_EQ(parse("").unused_members, "");
  EXPECT_NE(parse(R"(, "foo": 1)").unused_members.find("\"foo\""), std::string::npos);
  EXPECT_THROW(parse(R"(, "logit_scale": 0.5)"), Error);
  EXPECT_THROW(parse_hf_config(R"({"model_type": "mistral3", "text_config": {"num_hidden_layers": 2,
                                  "layer_types": ["full_attention", "sliding_attention"]}})",
                               "c"),
               Error);
}

TEST(ConfigMembers, that_change_are_told_once) {
  const auto a = hf_members(parse_with("gemma3_text", R"("rope_theta": 5e3)"));
  const auto b =
      hf_members(parse_with("gemma3_text", R"("rope_theta": 300, "initializer_range": 1)"));
  ASSERT_EQ(a.size(), b.size());
  std::vector<std::string> changed;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) changed.push_back(a[i].first);
  EXPECT_EQ(changed, std::vector<std::string>{"rope_parameters"});
}

TEST(ConfigMembers, architecture_and_model_type_must_agree) {
  expect_refused("mistral", R"("architectures": ["LlamaForCausalLM"])",
                 R"("architectures" says LlamaForCausalLM, but "model_type" says "mistral")");
  EXPECT_EQ(error_with("llama", R"("architectures": ["LLaMAForCausalLM"])"), "");
}

TEST(ConfigMembers, a_name_must_be_of_the_family) {
  const ModelSpec spec = parse_with("qwen3", "");
  require_name(spec, "qwen3");
  EXPECT_THROW(require_name(spec, "llama3"), Error);
  require_name(parse_with("llama", ""), "llama2");
}

}  // namespace
}  // namespace tokamak
