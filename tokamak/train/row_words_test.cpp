#include "tokamak/train/row_words.h"

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
}

TEST(RowWords, GuessesNoMachine) {
  for (const char* gpu :
       {"GH200", "H100 PCIe", "A100-PCIE-40GB", "H100 NVL", "V100", "TPU v5p", ""})
    EXPECT_EQ(machine_of_gpu(gpu), "") << gpu;
}

TEST(RowWords, KnowsPrecisions) {
  for (const char* text : {"fp8-cs", "fp8-mx", "MXFP8", "FP8 delayed", "Float8", "bf16+fp8"})
    EXPECT_EQ(precision_named(text), price::Precision::kFp8) << text;
  for (const char* text : {"nvfp4", "MXFP4"})
    EXPECT_EQ(precision_named(text), price::Precision::kFp4) << text;
  for (const char* text : {"bf16-mixed", "BF16", "fp16", "bfloat16", "amp_bf16", "fp16/fp32 mixed"})
    EXPECT_EQ(precision_named(text), price::Precision::kBf16) << text;
  for (const char* text : {"fp32", "TF32", "int8"})
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
  EXPECT_EQ(sharding_named("FSDP2").ranks, 0);
  EXPECT_EQ(sharding_named("FSDP1 SHARD_GRAD_OP").ranks, 0);
}

}  // namespace
}  // namespace tokamak
