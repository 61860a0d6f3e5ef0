#include "tokamak/parallel/float8/low_precision_choice.h"

#include <gtest/gtest.h>

#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {
namespace {

const std::string kKey = "--quantize.linear.float8.";

Config config_of(std::vector<std::string> words) {
  words.emplace_back("--model.converters=quantize.linear.float8");
  return load_config(std::nullopt, words).config;
}

std::string error_of(const std::vector<std::string>& words) {
  try {
    float8_of(config_of(words));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LowPrecisionChoice, AreNoneWithoutTheConverter) {
  const std::vector<std::string> words{kKey + "recipe_name=rowwise"};
  EXPECT_FALSE(float8_of(load_config(std::nullopt, words).config));
}

TEST(LowPrecisionChoice, FollowTheKeys) {
  const auto plain = float8_of(config_of({}));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->recipe.name, "tensorwise");
  EXPECT_FALSE(plain->recipe.power_of_two || plain->recipe.from_master || plain->recipe.emulate);
  const auto all = float8_of(config_of({kKey + "enable_fsdp_float8_all_gather", kKey + "emulate",
                                        kKey + "round_scales_to_power_of_2=always"}));
  EXPECT_TRUE(all->recipe.power_of_two && all->recipe.from_master && all->recipe.emulate);
  EXPECT_TRUE(float8_of(config_of({kKey + "recipe_name=rowwise"}))->recipe.power_of_two);
  EXPECT_FALSE(float8_of(config_of({kKey + "recipe_name=rowwise",
                                    kKey + "round_scales_to_power_of_2=never"}))
                   ->recipe.power_of_two);
}

TEST(LowPrecisionChoice, ChooseWhatARecipeLeavesOpen) {
  const auto plain = float8_of(config_of({}))->recipe;
  EXPECT_TRUE(plain.fast_y && !plain.fast_dx && !plain.fast_dw && plain.shares_scales);
  EXPECT_EQ(plain.gradient, DType::kE5M2);
  const auto chosen =
      float8_of(config_of({kKey + "fast_accum=grad_input,grad_weight",
                           kKey + "grad_dtype=float8_e4m3fn", kKey + "scales_per=module"}))
          ->recipe;
  EXPECT_TRUE(!chosen.fast_y && chosen.fast_dx && chosen.fast_dw && !chosen.shares_scales);
  EXPECT_EQ(chosen.gradient, DType::kE4M3);
  const auto rows =
      float8_of(config_of({kKey + "recipe_name=rowwise", kKey + "grad_dtype=float8_e5m2"}));
  EXPECT_EQ(rows->recipe.gradient, DType::kE5M2);
  EXPECT_FALSE(float8_of(config_of({kKey + "recipe_name=blockwise"}))->recipe.fast_y);
  const auto layers =
      float8_of(config_of({kKey + "bf16_layers_at_start=1", kKey + "bf16_layers_at_end=2"}))
          ->layers;
  EXPECT_EQ(layers.bf16_at_start, 1);
  EXPECT_EQ(layers.bf16_at_end, 2);
}

TEST(LowPrecisionChoice, FilterByBothSpellingsAndByDims) {
  const auto filter =
      float8_of(config_of({kKey + "filter_fqns=attention.wk,layers.1.,up_proj"}))->layers.filter;
  const auto name = [](int layer, const std::string& module) {
    return "model.layers." + std::to_string(layer) + "." + module + ".weight";
  };
  EXPECT_EQ(filter(name(0, "self_attn.q_proj"), {64, 64}), "");
  EXPECT_EQ(filter(name(0, "self_attn.k_proj"), {64, 64}),
            "quantize.linear.float8.filter_fqns has \"attention.wk\"");
  EXPECT_EQ(filter(name(1, "self_attn.q_proj"), {64, 64}),
            "quantize.linear.float8.filter_fqns has \"layers.1.\"");
  EXPECT_EQ(filter(name(0, "mlp.up_proj"), {64, 64}),
            "quantize.linear.float8.filter_fqns has \"up_proj\"");
  EXPECT_EQ(filter(name(0, "mlp.down_proj"), {64, 40}), "64 x 40 are no multiples of 16");
  EXPECT_EQ(filter("lm_head.weight", {256, 64}), "");
  EXPECT_EQ(filter("lm_head.weight", {50257, 64}), "50257 x 64 are no multiples of 16");
  for (const std::string word : {"output", "lm_head"}) {
    const auto heads = float8_of(config_of({kKey + "filter_fqns=" + word}))->layers.filter;
    EXPECT_EQ(heads("lm_head.weight", {256, 64}),
              "quantize.linear.float8.filter_fqns has \"" + word + "\"");
    EXPECT_EQ(heads(name(0, "self_attn.o_proj"), {64, 64}), "");
  }
  const auto blocks = float8_of(config_of({kKey + "recipe_name=blockwise"}))->layers.filter;
  EXPECT_EQ(blocks(name(0, "mlp.down_proj"), {256, 64}), "256 x 64 are no multiples of 128");
  EXPECT_EQ(blocks("transformer.h.0.mlp.c_fc.weight", {256, 128}), "");
}

Config mx_config_of(std::vector<std::string> words) {
  words.emplace_back("--model.converters=quantize.linear.mx");
  return load_config(std::nullopt, words).config;
}

TEST(LowPrecisionChoice, AreThoseOfMxWithItsConverter) {
  const std::string key = "--quantize.linear.mx.";
  const auto plain = float8_of(mx_config_of({}));
  ASSERT_TRUE(plain);
  EXPECT_TRUE(plain->recipe.is_mx() && !plain->recipe.rounds_up && !plain->recipe.emulate);
  EXPECT_FALSE(plain->recipe.fast_y);
  EXPECT_EQ(plain->recipe.gradient, DType::kE4M3);
  EXPECT_EQ(plain->layers.filter("lm_head.weight", {256, 64}),
            "quantize.linear.mx.filter_fqns has \"output\"");
  EXPECT_EQ(plain->layers.filter("model.layers.0.mlp.up_proj.weight", {48, 64}),
            "48 x 64 are no multiples of 32");
  EXPECT_EQ(plain->layers.filter("model.layers.0.mlp.up_proj.weight", {96, 64}), "");
  for (const std::string name : {"mxfp8_rceil", "mxfp8_cublas_rceil"})
    EXPECT_TRUE(float8_of(mx_config_of({key + "recipe_name=" + name}))->recipe.rounds_up);
  EXPECT_EQ(float8_of(mx_config_of({key + "recipe_name=mxfp8"}))->recipe.name, "mxfp8_cublas");
  EXPECT_TRUE(float8_of(mx_config_of({key + "recipe_name=mxfp8_emulated"}))->recipe.emulate);
  EXPECT_TRUE(float8_of(mx_config_of({key + "emulate"}))->recipe.emulate);
  EXPECT_THROW(mx_config_of({key + "recipe_name=mxfp4_cutlass"}), Error);
  EXPECT_THROW(float8_of(mx_config_of({key + "filter_fqns=auto_filter_small_kn"})), Error);
  const std::vector<std::string> both{"--model.converters=quantize.linear.float8,mx"};
  EXPECT_THROW(float8_of(load_config(std::nullopt, both).config), Error);
}

TEST(LowPrecisionChoice, SayWhichGpusMultiplyInFloat8) {
  const auto mx = float8_of(mx_config_of({}));
  EXPECT_EQ(why_no_float8(mx->recipe, {.backend = "gpu", .arch = 90}),
            "mxfp8 matmuls want sm_100 or newer, this is sm_90; quantize.linear.mx.emulate = true "
            "computes them in fp32");
  EXPECT_EQ(why_no_float8(mx->recipe, {.backend = "gpu", .arch = 100}), "");
  EXPECT_EQ(why_no_float8(mx->recipe, {}), "");
  const auto emulated = float8_of(mx_config_of({"--quantize.linear.mx.emulate"}));
  EXPECT_EQ(why_no_float8(emulated->recipe, {.backend = "gpu", .arch = 80}), "");
  EXPECT_EQ(LowPrecision().why_not({.backend = "gpu", .arch = 80}), "");
}

// torchao's table, N out and K in features.
TEST(LowPrecisionChoice, LeaveOutSmallMatmulsOnRequest) {
  const auto is_small = [](const char* recipe, int64_t n, int64_t k) {
    return !why_too_small(*find_float8_recipe(recipe), n, k).empty();
  };
  EXPECT_TRUE(is_small("tensorwise", 1024, 4096));
  EXPECT_FALSE(is_small("tensorwise", 1040, 4096));
  EXPECT_FALSE(is_small("tensorwise", 1024, 4112));
  EXPECT_TRUE(is_small("rowwise", 2048, 8192));
  EXPECT_TRUE(is_small("rowwise", 8192, 1024));
  EXPECT_TRUE(is_small("rowwise", 4096, 2048));
  EXPECT_FALSE(is_small("rowwise", 4096, 4096));
  const auto filter =
      float8_of(config_of({kKey + "filter_fqns=auto_filter_small_kn"}))->layers.filter;
  EXPECT_EQ(filter("model.layers.0.self_attn.k_proj.weight", {1024, 4096}),
            "auto_filter_small_kn: 1024 x 4096 gain nothing");
}

TEST(LowPrecisionChoice, ChooseHowDelayedScalesFollow) {
  const Float8Recipe plain = float8_of(config_of({kKey + "recipe_name=delayed"}))->recipe;
  EXPECT_EQ(plain.history_len, 1024);
  EXPECT_EQ(plain.margin, 0);
  EXPECT_FALSE(plain.most_recent);
  const Float8Recipe recipe =
      float8_of(config_of({kKey + "recipe_name=delayed", kKey + "amax_history_len=1",
                           kKey + "amax_compute_algo=most_recent", kKey + "margin=2"}))
          ->recipe;
  EXPECT_EQ(recipe.history_len, 1);
  EXPECT_EQ(recipe.margin, 2);
  EXPECT_TRUE(recipe.most_recent);
  for (const std::string key : {"amax_history_len=4", "amax_compute_algo=most_recent", "margin=1"})
    EXPECT_EQ(error_of({kKey + key}), kKey.substr(2) + key.substr(0, key.find('=')) +
                                          ": recipe tensorwise keeps no history; leave it out, or "
                                          "set quantize.linear.float8.recipe_name = delayed");
}

TEST(LowPrecisionChoice, NameKeysThatExcludeEachOther) {
  EXPECT_EQ(
      error_of({kKey + "recipe_name=rowwise", kKey + "enable_fsdp_float8_all_gather"}),
      "quantize.linear.float8.enable_fsdp_float8_all_gather: recipe rowwise quantizes rows and "
      "columns, which are gathered in the compute dtype; leave it out");
  EXPECT_EQ(error_of({kKey + "recipe_name=blockwise", kKey + "filter_fqns=auto_filter_small_kn"}),
            "quantize.linear.float8.filter_fqns: auto_filter_small_kn knows no sizes for recipe "
            "blockwise; name the layers");
  EXPECT_EQ(error_of({kKey + "recipe_name=blockwise", kKey + "fast_accum=grad_input"}),
            "quantize.linear.float8.fast_accum: recipe blockwise adds in fp32; leave it out");
  EXPECT_EQ(
      error_of({kKey + "recipe_name=rowwise_with_gw_hp", kKey + "fast_accum=output,grad_weight"}),
      "quantize.linear.float8.fast_accum: recipe rowwise_with_gw_hp computes grad_weight in the "
      "compute dtype; leave it out");
  for (const std::string name : {"rows", "mxfp8_cublas"})
    EXPECT_EQ(error_of({kKey + "recipe_name=" + name}),
              "quantize.linear.float8.recipe_name = " + name +
                  ": wanted tensorwise, delayed, rowwise, rowwise_with_gw_hp or blockwise");
  EXPECT_EQ(error_of({kKey + "recipe_name=delayed", kKey + "margin=17"}),
            "quantize.linear.float8.margin = 17: wanted at most 16 powers of two");
}

}  // namespace
}  // namespace tokamak
