#include "tokamak/evidence/row_words.h"

#include <gtest/gtest.h>

namespace tokamak {
namespace {

TEST(RowWords, KnowsGpusHoweverTheyAreSpelled) {
  EXPECT_EQ(machine_of_gpu("H100"), "h100");
  EXPECT_EQ(machine_of_gpu("NVIDIA H100 SXM5 80GB HBM3"), "h100");
  EXPECT_EQ(machine_of_gpu("H100 NVLink"), "h100");
  EXPECT_EQ(machine_of_gpu("H100-HBM2e-96GB"), "h100-96");
  EXPECT_EQ(machine_of_gpu("A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(machine_of_gpu("nvidia_a100-sxm4-80gb"), "a100-80");
  EXPECT_EQ(machine_of_gpu("A100"), "a100-80");
  EXPECT_EQ(machine_of_gpu("GB200 NVL72"), "gb200");
  EXPECT_EQ(machine_of_gpu("DGX-B200"), "b200");
  EXPECT_EQ(machine_of_gpu("DGX-GB300"), "gb300");
  EXPECT_EQ(machine_of_gpu("AMD Instinct MI300X OAM"), "mi300x");
  EXPECT_EQ(machine_of_gpu("MI250X-GCD"), "frontier");
  EXPECT_EQ(machine_of_gpu("RTX PRO 6000"), "rtx-pro-6000");
  EXPECT_EQ(machine_of_gpu("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(machine_of_gpu("8xH100"), "h100");
  EXPECT_EQ(machine_of_gpu("H100SXM5"), "h100");
  EXPECT_EQ(machine_of_gpu("64x H100s"), "h100");
  EXPECT_EQ(machine_of_gpu("DGXH100"), "h100");
  EXPECT_EQ(machine_of_gpu("GB200NVL72"), "gb200");
  EXPECT_EQ(machine_of_gpu("A100_80G"), "a100-80");
}

TEST(RowWords, GuessesNoMachine) {
  for (const char* gpu : {"GH200", "H100 PCIe", "A100-PCIE-40GB", "H100 NVL", "V100", "TPU v5p", "",
                          "H1000", "A100X", "RTX 4090D", "GH100", "NVIDIA A100 80GB PCIe"})
    EXPECT_EQ(machine_of_gpu(gpu), "") << gpu;
}

TEST(RowWords, KnowsPrecisions) {
  for (const char* text : {"fp8-cs", "fp8-mx", "MXFP8", "FP8 delayed", "Float8", "bf16+fp8"})
    EXPECT_EQ(precision_named(text), price::Precision::kFp8) << text;
  for (const char* text : {"nvfp4", "MXFP4"})
    EXPECT_EQ(precision_named(text), price::Precision::kFp4) << text;
  for (const char* text : {"bf16-mixed", "BF16", "fp16", "bfloat16", "amp_bf16", "fp16/fp32 mixed"})
    EXPECT_EQ(precision_named(text), price::Precision::kBf16) << text;
  for (const char* text : {"16-mixed", "amp", "bf16 (fp32 grad accumulation)"})
    EXPECT_EQ(precision_named(text), price::Precision::kBf16) << text;
  for (const char* text :
       {"fp32", "TF32", "int8", "banana", "fp6", "int4", "8bit", "fp64", "double", "int16"})
    EXPECT_EQ(precision_named(text), std::nullopt) << text;
}

TEST(RowWords, KnowsRecompute) {
  for (const char* text : {"", "none", "None", "no", "off", "False", "n/a", "0"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kNone) << text;
  for (const char* text : {"full", "Full AC", "uniform", "yes", "True", "full+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kFull) << text;
  for (const char* text : {"selective", "selective-op", "Selective+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kSelective) << text;
  EXPECT_EQ(recompute_named("selective layer"), RecomputeWord::kSelectiveLayers);
  for (const char* text : {"No recompute", "disabled", "never", "n", "0.0", "recompute: False",
                           "no activation checkpointing", "not used", "none+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kNone) << text;
  for (const char* text : {"full", "Yes", "1", "on", "full activation checkpointing"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kFull) << text;
  for (const char* text : {"core_attn", "attention only", "core attention", "attn"})
    EXPECT_EQ(recompute_named(text), RecomputeWord::kSelective) << text;
}

TEST(RowWords, GuessesNoRecompute) {
  for (const char* text : {"mlp", "2 layers", "full:4 of 32", "2", "0.5", "not full",
                           "no selective", "sequence-parallel", "offload", "block"})
    EXPECT_EQ(recompute_named(text), std::nullopt) << text;
}

TEST(RowWords, KnowsMixturesOfExperts) {
  for (const char* model :
       {"Mixtral-8x7B", "8x22B", "Qwen3-30B-A3B", "Qwen1.5-MoE-A2.7B", "DeepSeek-V3",
        "DeepSeekV2 Lite", "OLMoE-1B-7B", "Qwen3_235B_a22B", "Llama-4-Scout", "Llama4 Maverick",
        "llama4", "Llama-4-17B-16E-Instruct", "llama4-17b-128e", "Llama 4 400B", "Llama4Scout"})
    EXPECT_TRUE(names_experts(model)) << model;
  for (const char* model :
       {"Llama3-8B", "GPT 24x1024", "NeMo-8B", "Mistral-7B", "A100 run", "DeepSeek-67B", "llama",
        "Llama-405B", "LLaMA-40B", "Llama-4B", "llama4b", ""})
    EXPECT_FALSE(names_experts(model)) << model;
  for (const char* notes : {"a MoE", "EP=8", "EP= 8", "TP=1,EP=16"})
    EXPECT_TRUE(notes_experts(notes)) << notes;
  for (const char* notes : {"EP=1", "MAXSTEP=100", "no notes", ""})
    EXPECT_FALSE(notes_experts(notes)) << notes;
}

TEST(RowWords, KnowsSharding) {
  for (const char* text : {"FSDP2", "FSDP1 FULL_SHARD", "ZeRO-3", "zero_stage=3", "3", "HSDP"})
    EXPECT_EQ(sharding_named(text).sharding, Sharding::kFsdp) << text;
  for (const char* text : {"dist-opt (ZeRO-1)", "DDP/dist-opt", "ZeRO1", "Distributed optimizer"})
    EXPECT_EQ(sharding_named(text).sharding, Sharding::kZero1) << text;
  EXPECT_EQ(sharding_named("ZeRO stage 2").sharding, Sharding::kZero2);
  EXPECT_EQ(sharding_named("DDP").sharding, Sharding::kDdp);
  EXPECT_EQ(sharding_named("").sharding, std::nullopt);
  EXPECT_EQ(sharding_named("HSDP shard32 x rep26").ranks, 32);
  EXPECT_EQ(sharding_named("FSDP shard128").ranks, 128);
  EXPECT_EQ(sharding_named("FSDP64").ranks, 64);
  for (const char* text : {"HSDP shard=32", "HSDP shard: 32", "shard = 32, FSDP", "FSDP (32)"})
    EXPECT_EQ(sharding_named(text).ranks, 32) << text;
  EXPECT_EQ(sharding_named("FULL_SHARD, 4 GPUs a node").ranks, 0);
  EXPECT_EQ(sharding_named("FSDP2").ranks, 0);
  EXPECT_EQ(sharding_named("FSDP1 SHARD_GRAD_OP").ranks, 0);
}

}  // namespace
}  // namespace tokamak
