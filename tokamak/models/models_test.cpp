#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/models/model.h"
#include "tokamak/models/own_sizes.h"

namespace tokamak {
namespace {

StateTable states_of(const ModelSpec& spec) {
  StateTable states;
  Graph g(states);
  const auto input = [&](const char* name) {
    return g.read(states.declare(
        {.name = name, .type = {.dtype = DType::kI32, .dims = {1, 4}}, .kind = StateKind::kInput}));
  };
  Parameters parameters(g, DType::kF32, DType::kF32);
  build_model(g, parameters, spec, {.tokens = input("tokens"), .positions = input("positions")}, 0);
  return states;
}

int64_t built_parameters(const ModelSpec& spec) {
  const StateTable states = states_of(spec);
  int64_t total = 0;
  for (const StateId id : states.of_kind(StateKind::kParameter)) total += states[id].type.numel();
  return total;
}

TEST(Flavors, llama3_has_the_published_parameter_counts) {
  const std::pair<const char*, int64_t> rows[] = {
      {"debugmodel", 6'163'712}, {"1B", 1'235'814'400},   {"3B", 3'212'749'824},
      {"8B", 8'030'261'248},     {"70B", 70'553'706'496}, {"405B", 405'853'388'800}};
  for (const auto& [flavor, count] : rows) {
    EXPECT_EQ(count_parameters(flavor_spec("llama3", flavor)).total, count) << flavor;
  }
}

// Counted by transformers on the same sizes.
TEST(Flavors, other_families_have_the_published_parameter_counts) {
  const std::tuple<const char*, const char*, int64_t> rows[] = {
      {"mistral", "7B", 7'248'023'552},    {"mistral", "12B", 12'247'782'400},
      {"mistral", "24B", 23'572'403'200},  {"qwen2", "0.5B", 494'032'768},
      {"qwen2", "1.5B", 1'543'714'304},    {"qwen2", "3B", 3'085'938'688},
      {"qwen2", "7B", 7'615'616'512},      {"qwen2", "14B", 14'770'033'664},
      {"qwen2", "32B", 32'763'876'352},    {"qwen2", "72B", 72'706'203'648},
      {"qwen3", "debugmodel", 31'987'968}, {"qwen3", "0.6B", 596'049'920},
      {"qwen3", "1.7B", 1'720'574'976},    {"qwen3", "4B", 4'022'468'096},
      {"qwen3", "8B", 8'190'735'360},      {"qwen3", "14B", 14'768'307'200},
      {"qwen3", "32B", 32'762'123'264},    {"gemma", "2B", 2'506'172'416},
      {"gemma", "7B", 8'537'680'896},      {"gemma2", "2B", 2'614'341'888},
      {"gemma2", "9B", 9'241'705'984},     {"gemma2", "27B", 27'227'128'320},
      {"gemma3", "270M", 268'098'176},     {"gemma3", "1B", 999'885'952},
      {"gemma3", "4B", 3'880'263'168},     {"gemma3", "12B", 11'766'034'176},
      {"gemma3", "27B", 27'009'346'304}};
  for (const auto& [name, flavor, count] : rows) {
    EXPECT_EQ(count_parameters(flavor_spec(name, flavor)).total, count) << name << " " << flavor;
  }
}

TEST(Flavors, counts_equal_what_is_built) {
  for (const std::string& name : model_names()) {
    for (const std::string& flavor : flavors_of(name)) {
      const ModelSpec spec = flavor_spec(name, flavor);
      EXPECT_EQ(count_parameters(spec).total, built_parameters(spec)) << name << " " << flavor;
    }
  }
}

// Deviations of 1 in a tied table would give logits of sqrt(dim), and a first loss of hundreds.
TEST(Flavors, tied_tables_begin_as_heads) {
  for (const std::string& name : model_names()) {
    for (const std::string& flavor : flavors_of(name)) {
      const ModelSpec spec = flavor_spec(name, flavor);
      const StateTable states = states_of(spec);
      if (!spec.tied || spec.init != InitRecipe::kTorchtitan) continue;
      const StateDecl& table = states[states.find("model.embed_tokens.weight")];
      EXPECT_DOUBLE_EQ(table.init.std, 1.0 / std::sqrt(static_cast<double>(spec.dim)))
          << name << " " << flavor;
    }
  }
}

TEST(Flavors, an_unknown_name_is_refused_by_key) {
  const auto error_at = [](const char* name, const char* flavor) -> std::string {
    try {
      flavor_spec(name, flavor);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(error_at("llama3", "debugmodle").ends_with("; the nearest is debugmodel"));
  EXPECT_TRUE(error_at("lama3", "8B").ends_with("; the nearest is llama3"));
}

TEST(OwnSizes, follow_what_is_set) {
  ModelSpec spec = flavor_spec("llama3", "8B");
  apply_sizes({}, spec);
  EXPECT_EQ(count_parameters(spec).total, 8'030'261'248);
  apply_sizes({.layers = 12, .dim = 768, .heads = 12, .kv_heads = 4, .vocab_size = 32000}, spec);
  EXPECT_EQ(spec.head_dim, 64);
  EXPECT_EQ(spec.mlp_dim, 2688);
  const ModelSpec back = parse_hf_config(to_hf_config(spec, DType::kF32, {}), "c");
  EXPECT_EQ(count_parameters(back).total, count_parameters(spec).total);

  ModelSpec windows = flavor_spec("mistral", "7B");
  apply_sizes({.layers = 3, .window = 128}, windows);
  EXPECT_EQ(windows.attention.windows, std::vector<int64_t>(3, 128));
  apply_sizes({.layers = 4}, windows);
  EXPECT_EQ(windows.attention.windows, std::vector<int64_t>(4, 128));
  EXPECT_EQ(parse_hf_config(to_hf_config(windows, DType::kF32, {}), "c").attention.windows,
            windows.attention.windows);
}

TEST(OwnSizes, that_cannot_be_are_refused_by_key) {
  const std::tuple<const char*, OwnSizes, const char*> cases[] = {
      {"llama3", {.heads = 7}, "model.heads = 7: 7 heads do not divide 256"},
      {"llama3", {.heads = 8, .kv_heads = 3}, "model.kv_heads = 3: wanted a divisor of the 8"},
      {"llama3", {.head_dim = 15}, "model.head_dim = 15: the width of a head, 15, is odd"},
      {"llama3", {.layers = 2000}, "model.layers = 2000: wanted at most 1024"},
      {"llama3", {.window = 4}, "model.window = 4: llama3 has no sliding window; mistral"},
      {"llama3", {.dim = 100}, "model.dim = 100: 16 heads do not divide 100"},
      {"llama3", {.dim = 100, .heads = 4}, "model.heads = 4, model.dim = 100: the width of a head"},
      {"gpt2", {.head_dim = 32}, "model.head_dim = 32: heads of gpt2 are 64 wide"},
      {"gpt2", {.kv_heads = 4}, "model.kv_heads = 4: gpt2 has one key-value head for each"}};
  for (const auto& [name, own, message] : cases) {
    ModelSpec spec = flavor_spec(name, flavors_of(name).front());
    try {
      apply_sizes(own, spec);
      ADD_FAILURE() << "no error, wanted " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

std::string error_of(const std::string& json) {
  try {
    parse_hf_config(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const std::string kLlama =
    R"("model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176, "vocab_size": 512)";

TEST(HfConfig, reads_gpt2_by_the_names_of_other_families) {
  const ModelSpec spec = parse_hf_config(
      R"({"model_type": "gpt2", "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 3,
          "max_position_embeddings": 77, "n_embd": 32})",
      "c");
  EXPECT_EQ(spec.dim, 24);
  EXPECT_EQ(spec.num_heads, 2);
  EXPECT_EQ(spec.num_layers, 3);
  EXPECT_EQ(spec.max_seq_len, 77);
}

TEST(HfConfig, reads_both_spellings_of_rope) {
  const auto is_llama3 = [](const ModelSpec& spec) {
    return spec.rope.scaling.kind == RopeScaling::Kind::kLlama3 &&
           spec.rope.scaling.factor == 32.0 && spec.rope.theta == 5e5;
  };
  EXPECT_TRUE(is_llama3(parse_hf_config(
      "{" + kLlama +
          R"(, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0}})",
      "c")));
  EXPECT_TRUE(is_llama3(parse_hf_config(
      "{" + kLlama +
          R"(, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 32.0}})",
      "c")));
}

TEST(HfConfig, knows_the_old_name_of_silu) {
  EXPECT_EQ(error_of(fmt::format("{{{}, \"hidden_act\": \"swish\"}}", kLlama)), "");
}

TEST(HfConfig, refuses_other_maths_by_name) {
  for (const char* extra : {R"("hidden_act": "gelu")", R"("rope_scaling": {"rope_type": "su"})",
                            R"("sliding_window": 4096)", R"("quantization_config": {})",
                            R"("num_key_value_heads": 3)", R"("partial_rotary_factor": 0.5)"}) {
    const std::string text = extra;
    const std::string error = error_of(fmt::format("{{{}, {}}}", kLlama, text));
    EXPECT_NE(error.find(text.substr(1, text.find('"', 1) - 1)), std::string::npos)
        << extra << ": " << error;
  }
  EXPECT_NE(error_of(R"({"architectures": ["MixtralForCausalLM"]})").find("MixtralForCausalLM"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"model_type": "llama"})").find("vocab_size"), std::string::npos);
  EXPECT_NE(error_of(R"({"model_type": "llama", "vocab_size": -4})").find("-4"), std::string::npos);
}

TEST(HfConfig, a_model_without_its_head_is_known_by_its_type) {
  const std::string sizes = kLlama.substr(kLlama.find(',') + 1);
  for (const char* name :
       {R"("LlamaModel")", R"("LlamaForCausalLM")", R"("LLaMAForCausalLM")", ""}) {
    const ModelSpec spec = parse_hf_config(
        fmt::format(R"({{"model_type": "llama", "architectures": [{}],{}}})", name, sizes), "c");
    EXPECT_EQ(parse_json(to_hf_config(spec, DType::kF32, {}), "c")["architectures"],
              Json::array({"LlamaForCausalLM"}));
  }
  EXPECT_NE(error_of(R"({"architectures": ["BertModel"], "model_type": "bert"})").find("BertModel"),
            std::string::npos);
}

std::vector<int64_t> windows_of(const std::string& type, const std::string& more) {
  const std::string text = kLlama.substr(kLlama.find(',') + 1);
  return parse_hf_config(fmt::format(R"({{"model_type": "{}",{}{}}})", type, text, more), "c")
      .attention.windows;
}

TEST(HfConfig, windows_are_those_of_transformers) {
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows_of("mistral", R"(, "num_key_value_heads": 2)"), Windows(2, 4096));
  EXPECT_EQ(windows_of("mistral", R"(, "num_key_value_heads": 2, "sliding_window": null)"),
            Windows());
  const std::string qwen =
      R"(, "num_key_value_heads": 2, "use_sliding_window": true, "sliding_window": 9)";
  EXPECT_EQ(windows_of("qwen2", qwen), Windows(2, 0));
  EXPECT_EQ(windows_of("qwen2", qwen + R"(, "max_window_layers": 1)"), Windows({0, 9}));
  EXPECT_EQ(
      windows_of("qwen3", qwen + R"(, "layer_types": ["sliding_attention", "full_attention"])"),
      Windows({9, 0}));
  EXPECT_EQ(windows_of("qwen3", R"(, "num_key_value_heads": 2, "sliding_window": 9)"), Windows());
  EXPECT_THROW(windows_of("qwen3", qwen + R"(, "layer_types": ["chunked_attention"])"), Error);
}

TEST(HfConfig, names_one_or_several_ends_of_a_text) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(parse_eos_ids(R"({"eos_token_id": 7})", "c"), Ids({7}));
  EXPECT_EQ(parse_eos_ids(R"({"eos_token_id": [1, 106]})", "c"), Ids({1, 106}));
  EXPECT_EQ(parse_eos_ids(R"({"eos_token_id": null})", "c"), Ids());
  EXPECT_EQ(parse_eos_ids("{}", "c"), Ids());
  for (const char* bad : {R"("a")", "-1", "[1, 2.5]", "9000000000", "{}"})
    EXPECT_THROW(parse_eos_ids(fmt::format(R"({{"eos_token_id": {}}})", bad), "c"), Error) << bad;
}

TEST(HfConfig, rope_scalings_survive_the_round_trip) {
  for (
      const char* rope :
      {R"("rope_type": "linear", "factor": 3.0)", R"("rope_type": "dynamic", "factor": 2.0)",
       R"("rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "truncate": false)",
       R"("rope_type": "longrope", "factor": 3.0, "short_factor": [1, 1.5, 1, 1, 1, 1, 1, 1], "long_factor": [2, 2, 2, 2, 2, 2, 2, 4])"}) {
    ModelSpec spec = parse_hf_config(
        fmt::format(R"({{{}, "rope_parameters": {{"rope_theta": 5e5, {}}}}})", kLlama, rope), "c");
    spec.hf_config.clear();
    const ModelSpec back = parse_hf_config(to_hf_config(spec, DType::kF32, {}), "c");
    EXPECT_EQ(back.rope.scaling, spec.rope.scaling) << rope;
    EXPECT_EQ(back.rope.theta, 5e5);
  }
}

TEST(HfConfig, is_written_back_as_found) {
  const std::string text =
      "{" + kLlama + R"(, "torch_dtype": "bfloat16", "a_field_of_theirs": [1, 2]})";
  const std::string out = to_hf_config(parse_hf_config(text, "c"), DType::kF32, {});
  EXPECT_NE(out.find("\"torch_dtype\": \"float32\""), std::string::npos) << out;
  EXPECT_NE(out.find("a_field_of_theirs"), std::string::npos) << out;
}

TEST(HfConfig, a_flavor_survives_the_round_trip) {
  for (const auto& [name, flavor] :
       {std::pair{"llama3", "8B"}, std::pair{"llama3", "1B"}, std::pair{"gpt2", "124M"},
        std::pair{"mistral", "12B"}, std::pair{"qwen2", "0.5B"}, std::pair{"qwen3", "8B"},
        std::pair{"gemma", "7B"}, std::pair{"gemma2", "2B"}, std::pair{"gemma2", "27B"},
        std::pair{"gemma3", "1B"}, std::pair{"gemma3", "27B"}}) {
    const ModelSpec spec = flavor_spec(name, flavor);
    const ModelSpec back =
        parse_hf_config(to_hf_config(spec, DType::kBF16, {.bos = 1, .eos = 2}), "c");
    EXPECT_EQ(count_parameters(back).total, count_parameters(spec).total);
    EXPECT_EQ(back.rope.scaling, spec.rope.scaling);
    EXPECT_EQ(back.rope.theta, learned_positions(spec) == 0 ? spec.rope.theta : back.rope.theta);
    EXPECT_EQ(back.tied, spec.tied);
    EXPECT_EQ(back.attention.windows, spec.attention.windows);
    EXPECT_EQ(back.attention.window_rope, spec.attention.window_rope);
    EXPECT_EQ(back.attention.query_scalar, spec.attention.query_scalar);
    EXPECT_EQ(back.gate, spec.gate);
    EXPECT_EQ(back.attention.score_cap, spec.attention.score_cap);
    EXPECT_EQ(back.logit_cap, spec.logit_cap);
  }
}

TEST(HfConfig, gemma2_defaults_are_those_of_transformers) {
  const auto parse = [](const std::string& more) {
    return parse_hf_config(
        R"({"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 176, "vocab_size": 512)" +
            more + "}",
        "c");
  };
  const ModelSpec spec = parse("");
  EXPECT_EQ(spec.attention.windows, std::vector<int64_t>({4096, 0, 4096}));
  EXPECT_EQ(spec.head_dim, 256);
  EXPECT_EQ(spec.num_kv_heads, 4);
  EXPECT_EQ(spec.attention.score_cap, 50.0);
  EXPECT_EQ(spec.logit_cap, 30.0);
  EXPECT_TRUE(spec.tied);
  EXPECT_FALSE(spec.attention.qk_norm);
  const ModelSpec other = parse(
      R"(, "attn_logit_softcapping": null, "final_logit_softcapping": 7.5, "layer_types": ["full_attention", "full_attention", "sliding_attention"])");
  EXPECT_EQ(other.attention.windows, std::vector<int64_t>({0, 0, 4096}));
  EXPECT_EQ(other.attention.score_cap, 0.0);
  EXPECT_EQ(other.logit_cap, 7.5);
}

std::string gemma3(const std::string& more) {
  return R"({"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 176, "vocab_size": 512)" +
         more + "}";
}

TEST(HfConfig, gemma3_defaults_are_those_of_transformers) {
  const ModelSpec spec = parse_hf_config(gemma3(""), "c");
  EXPECT_EQ(spec.attention.windows,
            std::vector<int64_t>({4096, 4096, 4096, 4096, 4096, 0, 4096, 4096}));
  EXPECT_EQ(rope_of(spec, 0).theta, 1e4);
  EXPECT_EQ(rope_of(spec, 5).theta, 1e6);
  EXPECT_EQ(spec.head_dim, 256);
  EXPECT_EQ(spec.num_kv_heads, 4);
  EXPECT_TRUE(spec.tied);
  const ModelSpec every_third = parse_hf_config(gemma3(R"(, "sliding_window_pattern": 3)"), "c");
  EXPECT_EQ(every_third.attention.windows,
            std::vector<int64_t>({4096, 4096, 0, 4096, 4096, 0, 4096, 4096}));
}

TEST(HfConfig, gemma3_has_two_rotations_in_both_spellings) {
  for (
      const char* text :
      {R"(, "rope_theta": 2e5, "rope_local_base_freq": 300, "rope_scaling": {"rope_type": "linear", "factor": 8})",
       R"(, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 2e5}, "sliding_attention": {"rope_theta": 300}})"}) {
    const ModelSpec spec = parse_hf_config(gemma3(text), "c");
    EXPECT_EQ(rope_of(spec, 4), RotarySpec{.theta = 300.0}) << text;
    EXPECT_EQ(rope_of(spec, 5).theta, 2e5) << text;
    EXPECT_EQ(rope_of(spec, 5).scaling.factor, 8.0) << text;
  }
}

TEST(HfConfig, gemma_with_other_maths_is_refused_by_name) {
  for (const char* extra :
       {R"("final_logit_softcapping": 30.0)", R"("attn_logit_softcapping": 50.0)",
        R"("use_bidirectional_attention": true)", R"("hidden_activation": "silu")",
        R"("rope_parameters": {"rope_theta": 1e4})", R"("query_pre_attn_scalar": 0)",
        R"("layer_types": ["full_attention"])", R"("sliding_window_pattern": 0)"}) {
    const std::string text = extra;
    const std::string error = error_of(gemma3(", " + text));
    EXPECT_NE(error.find(text.substr(0, text.find(':'))), std::string::npos)
        << extra << ": " << error;
  }
}

// config.json of gemma-3-4b-it as published, which leaves most members to transformers.
TEST(HfConfig, gemma3_for_images_gives_its_text_model) {
  const std::string text =
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
          "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
          "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0,
          "rope_type": "linear"}, "sliding_window": 1024}, "torch_dtype": "bfloat16",
          "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}})";
  const ModelSpec spec = parse_hf_config(text, "c");
  const ModelSpec flavor = flavor_spec("gemma3", "4B");
  EXPECT_EQ(count_parameters(spec).total, count_parameters(flavor).total);
  EXPECT_EQ(spec.attention.windows, flavor.attention.windows);
  EXPECT_EQ(rope_of(spec, 5), rope_of(flavor, 5));
  EXPECT_EQ(rope_of(spec, 0), rope_of(flavor, 0));
  EXPECT_EQ(spec.attention.query_scalar, flavor.attention.query_scalar);
  EXPECT_TRUE(spec.tied);
  const Json json = parse_json(to_hf_config(spec, DType::kF32, {}), "c");
  EXPECT_EQ(json["architectures"], Json::array({"Gemma3ForCausalLM"}));
  EXPECT_EQ(json["model_type"], "gemma3_text");
  EXPECT_EQ(json["eos_token_id"], Json::array({1, 106}));
  EXPECT_EQ(json["torch_dtype"], "float32");
  EXPECT_EQ(json["num_attention_heads"], 8);
  EXPECT_FALSE(json.contains("vision_config"));
}

TEST(HfConfig, a_model_for_images_says_itself_whether_the_head_is_tied) {
  const auto parse = [](const std::string& inside, const std::string& outside) {
    return parse_hf_config(
        R"({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"vocab_size": 9)" +
            inside + "}" + outside + "}",
        "c");
  };
  EXPECT_FALSE(parse("", "").tied);
  EXPECT_TRUE(parse(R"(, "tie_word_embeddings": true)", "").tied);
  EXPECT_FALSE(parse(R"(, "tie_word_embeddings": true)", R"(, "tie_word_embeddings": false)").tied);
  const ModelSpec spec = parse(R"(, "dtype": "float16")", R"(, "torch_dtype": "bfloat16")");
  EXPECT_EQ(spec.mlp_dim, 14336);
  EXPECT_EQ(spec.num_kv_heads, 8);
  EXPECT_EQ(to_hf_config(spec, DType::kF32, {}).find("float16"), std::string::npos);
}

TEST(HfConfig, other_models_for_images_are_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"architectures": ["Gemma3ForConditionalGeneration"]})", "no \"text_config\""},
      {R"({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}})",
       "model_type \"ministral3\" is not supported, only llama, mistral"},
      {R"({"model_type": "gemma3", "text_config": {}, "quantization_config": {}})",
       "\"quantization_config\" is not supported"},
      {R"({"model_type": "gemma3", "text_config": 3})", "\"text_config\": wanted an object"},
      {R"({"architectures": ["LlavaForConditionalGeneration"]})",
       "and the text models of Gemma3ForConditionalGeneration"}};
  for (const auto& [json, message] : cases)
    EXPECT_NE(error_of(json).find(message), std::string::npos) << error_of(json);
}

TEST(OwnSizes, windows_follow_the_pattern) {
  ModelSpec spec = flavor_spec("gemma3", "270M");
  apply_sizes({.layers = 7}, spec);
  EXPECT_EQ(spec.attention.windows, std::vector<int64_t>({512, 512, 512, 512, 512, 0, 512}));
  apply_sizes({.window = 64}, spec);
  EXPECT_EQ(spec.attention.windows, std::vector<int64_t>({64, 64, 64, 64, 64, 0, 64}));
  apply_sizes({.window = 0}, spec);
  EXPECT_TRUE(spec.attention.windows.empty());
}

}  // namespace
}  // namespace tokamak
