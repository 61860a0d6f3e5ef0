#include "rows/row_rules.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

std::string filled(const std::string& column, RowTexts texts) {
  RowRules::built_in().fill(texts);
  return text_in(texts, column);
}

std::string machine_of_gpu(const std::string& gpu) {
  return filled("device", {{"gpu", gpu}});
}

std::string precision_named(const std::string& text) {
  return filled("products", {{"precision", text}});
}

std::string recompute_named(const std::string& text) {
  return filled("recompute_mode", {{"recompute", text}});
}

std::string mixture_named(const std::string& column, const std::string& text) {
  return filled("mixture", {{column, text}});
}

std::string sharding_named(const std::string& text) {
  return filled("sharding", {{"zero_stage_or_fsdp", text}});
}

std::string shard_ranks(const std::string& text) {
  return filled("shard_ranks", {{"zero_stage_or_fsdp", text}});
}

std::string machine_of(const std::string& source, const std::string& gpu,
                       const std::string& notes = "") {
  return filled("machine_names", {{"source", source}, {"gpu", gpu}, {"notes", notes}});
}

std::string software_of(const std::string& source, const std::string& notes = "",
                        const std::string& gpu = "H100") {
  return filled("software", {{"source", source}, {"gpu", gpu}, {"notes", notes}});
}

// Returns the error that a file of rules causes.
std::string error_of(const std::string& toml) {
  try {
    const RowRules rules(toml, "words.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RowRules, KnowsWhatTorchtitanRan) {
  const auto software = [](const std::string& precision, const std::string& notes) {
    return filled("software",
                  {{"source", "pytorch/torchtitan"}, {"precision", precision}, {"notes", notes}});
  };
  EXPECT_EQ(software("bf16", ""), "torchtitan");
  EXPECT_EQ(software("fp8-tensorwise", "compile=yes; asyncTP=no"), "torchtitan-compiled");
  EXPECT_EQ(software("fp8-tensorwise", "compile=yes; asyncTP=yes; 94 GB"), "torchtitan-async-tp");
  EXPECT_EQ(software("fp8", "schedule 1F1B; asyncTP; compile"), "torchtitan-async-tp");
  EXPECT_EQ(software("fp8-rowwise", "asyncTP=no; compile"), "torchtitan-rowwise");
  EXPECT_EQ(software("fp8-rowwise", "asyncTP=yes; compile"), "torchtitan-rowwise-async-tp");
  EXPECT_EQ(filled("machine_names",
                   {{"source", "torchtitan"}, {"gpu", "H100"}, {"precision", "fp8-rowwise"}}),
            "h100-published+torchtitan-rowwise+torchtitan-hopper");
}

TEST(RowRules, KnowsGpusHoweverTheyAreSpelled) {
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

TEST(RowRules, GuessesNoMachine) {
  for (const char* gpu : {"GH200", "H100 PCIe", "A100-PCIE-40GB", "H100 NVL", "V100", "TPU v5p", "",
                          "H1000", "A100X", "RTX 4090D", "GH100", "NVIDIA A100 80GB PCIe"})
    EXPECT_EQ(machine_of_gpu(gpu), "") << gpu;
}

TEST(RowRules, KnowsPrecisions) {
  for (const char* text : {"fp8-cs", "fp8-mx", "MXFP8", "FP8 delayed", "Float8", "bf16+fp8"})
    EXPECT_EQ(precision_named(text), "fp8") << text;
  for (const char* text : {"nvfp4", "MXFP4"}) EXPECT_EQ(precision_named(text), "fp4") << text;
  for (const char* text : {"bf16-mixed", "BF16", "fp16", "bfloat16", "amp_bf16", "fp16/fp32 mixed"})
    EXPECT_EQ(precision_named(text), "bf16") << text;
  for (const char* text : {"16-mixed", "amp", "bf16 (fp32 grad accumulation)"})
    EXPECT_EQ(precision_named(text), "bf16") << text;
  for (const char* text :
       {"fp32", "TF32", "int8", "banana", "fp6", "int4", "8bit", "fp64", "double", "int16"})
    EXPECT_EQ(precision_named(text), "unknown") << text;
}

TEST(RowRules, KnowsRecompute) {
  for (const char* text : {"", "none", "None", "no", "off", "False", "n/a", "0"})
    EXPECT_EQ(recompute_named(text), "none") << text;
  for (const char* text : {"full", "Full AC", "uniform", "yes", "True", "full+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), "full") << text;
  for (const char* text : {"selective", "selective-op", "Selective+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), "selective") << text;
  EXPECT_EQ(recompute_named("selective layer"), "selective-layers");
  for (const char* text : {"No recompute", "disabled", "never", "n", "0.0", "recompute: False",
                           "no activation checkpointing", "not used", "none+sequence-parallel"})
    EXPECT_EQ(recompute_named(text), "none") << text;
  for (const char* text : {"full", "Yes", "1", "on", "full activation checkpointing"})
    EXPECT_EQ(recompute_named(text), "full") << text;
  for (const char* text : {"core_attn", "attention only", "core attention", "attn"})
    EXPECT_EQ(recompute_named(text), "selective") << text;
}

TEST(RowRules, GuessesNoRecompute) {
  for (const char* text : {"mlp", "2 layers", "full:4 of 32", "2", "0.5", "not full",
                           "no selective", "sequence-parallel", "offload", "block"})
    EXPECT_EQ(recompute_named(text), "unknown") << text;
}

TEST(RowRules, KnowsMixturesOfExperts) {
  for (const char* model :
       {"Mixtral-8x7B", "8x22B", "Qwen3-30B-A3B", "Qwen1.5-MoE-A2.7B", "DeepSeek-V3",
        "DeepSeekV2 Lite", "OLMoE-1B-7B", "Qwen3_235B_a22B", "Llama-4-Scout", "Llama4 Maverick",
        "llama4", "Llama-4-17B-16E-Instruct", "llama4-17b-128e", "Llama 4 400B", "Llama4Scout"})
    EXPECT_EQ(mixture_named("model", model), "named") << model;
  for (const char* model :
       {"Llama3-8B", "GPT 24x1024", "NeMo-8B", "Mistral-7B", "A100 run", "DeepSeek-67B", "llama",
        "Llama-405B", "LLaMA-40B", "Llama-4B", "llama4b", ""})
    EXPECT_EQ(mixture_named("model", model), "") << model;
  for (const char* notes : {"a MoE", "EP=8", "EP= 8", "TP=1,EP=16"})
    EXPECT_EQ(mixture_named("notes", notes), "noted") << notes;
  for (const char* notes : {"EP=1", "MAXSTEP=100", "no notes", ""})
    EXPECT_EQ(mixture_named("notes", notes), "") << notes;
}

TEST(RowRules, KnowsSharding) {
  for (const char* text : {"FSDP2", "FSDP1 FULL_SHARD", "ZeRO-3", "zero_stage=3", "3", "HSDP"})
    EXPECT_EQ(sharding_named(text), "fsdp") << text;
  for (const char* text : {"dist-opt (ZeRO-1)", "DDP/dist-opt", "ZeRO1", "Distributed optimizer"})
    EXPECT_EQ(sharding_named(text), "zero1") << text;
  EXPECT_EQ(sharding_named("ZeRO stage 2"), "zero2");
  EXPECT_EQ(sharding_named("DDP"), "ddp");
  EXPECT_EQ(sharding_named(""), "zero1") << "not stated";
  EXPECT_EQ(filled("sharding", {{"source", "bigscience"}}), "ddp");
  EXPECT_EQ(shard_ranks("HSDP shard32 x rep26"), "32");
  EXPECT_EQ(shard_ranks("FSDP shard128"), "128");
  EXPECT_EQ(shard_ranks("FSDP64"), "64");
  for (const char* text : {"HSDP shard=32", "HSDP shard: 32", "shard = 32, FSDP", "FSDP (32)"})
    EXPECT_EQ(shard_ranks(text), "32") << text;
  EXPECT_EQ(shard_ranks("FULL_SHARD, 4 GPUs a node"), "");
  EXPECT_EQ(shard_ranks("FSDP2"), "");
  EXPECT_EQ(shard_ranks("FSDP1 SHARD_GRAD_OP"), "");
}

TEST(RowRules, KnowSoftwareByItsSource) {
  EXPECT_EQ(software_of("mosaicml/llm-foundry README"), "mosaic");
  EXPECT_EQ(software_of("karpathy/llm.c"), "llm.c");
  EXPECT_EQ(software_of("IST-DASLab/llmq README"), "llm.c");
  EXPECT_EQ(software_of("tokamak"), "tokamak");
  for (const char* source : {"arXiv 2104.04473 Table 1", "arXiv 2205.05198", "bigscience-workshop"})
    EXPECT_EQ(software_of(source), "megatron") << source;
  EXPECT_EQ(software_of("DeepSpeed", "", "A100"), "megatron") << "of the years of A100";
  EXPECT_EQ(software_of("GPT-NeoX", "flash attention", "A100"), "nemo");
  EXPECT_EQ(software_of("DeepSpeed", "", "H100"), "nemo");
  for (const char* source : {"NVIDIA x", "AMD-AGI/Primus", "mlcommons/training_results_v5.0"})
    EXPECT_EQ(software_of(source), "nemo") << source;
  EXPECT_EQ(software_of("NVIDIA torchtitan"), "torchtitan");
  EXPECT_EQ(software_of("someone", "compile off"), "torchtitan");
  for (const char* notes : {"compile=yes", "compile; AC", "torch.compile on", "with compile"})
    EXPECT_EQ(software_of("someone", notes), "torchtitan-compiled") << notes;
}

TEST(RowRules, NameMachinesWithTheirSoftware) {
  EXPECT_EQ(machine_of("tokamak", "H100"), "h100");
  EXPECT_EQ(machine_of("karpathy/llm.c", "H100"), "h100-published");
  EXPECT_EQ(machine_of("NVIDIA x", "H200"), "h200+nemo+nemo-hopper");
  EXPECT_EQ(machine_of("NVIDIA x", "GB200"), "gb200+nemo");
  EXPECT_EQ(machine_of("pytorch/torchtitan", "H100", "compile=yes"),
            "h100-published+torchtitan-compiled+torchtitan-hopper");
  EXPECT_EQ(machine_of("mosaicml", "H100"), "h100-published+mosaic+mosaic-hopper");
  EXPECT_EQ(machine_of("mosaicml", "A100", "amp_bf16"), "a100-80+mosaic+mosaic-amp");
  EXPECT_EQ(machine_of("mosaicml", "H100", "amp_fp8"),
            "h100-published+mosaic+mosaic-hopper+mosaic-amp");
  EXPECT_EQ(machine_of("NVIDIA x", "V100"), "");
  EXPECT_EQ(filled("machine_names", {{"source", "NVIDIA x"}, {"gpu", "H100"}, {"machine", "h100"}}),
            "h100+nemo+nemo-hopper");
}

// The second names the first's repository for its mesh only.
TEST(RowRules, KnowTheNetworkOfBloom) {
  const auto file_of = [](const std::string& source) {
    return filled("machine_file", {{"gpu", "A100-80GB"}, {"source", source}});
  };
  EXPECT_EQ(file_of("bigscience-workshop/bigscience train/tr11-176B-ml/chronicles-prequel.md"),
            "a100-80-opa");
  EXPECT_EQ(
      file_of("arXiv 2104.04473 Table 1 (split from bigscience jz/frameworks/megatron-lm.md)"),
      "a100-80");
}

TEST(RowRules, HoldInOrderAndFillOnlyWhatIsBlank) {
  const RowRules rules(R"(
[words]
size = '\d+b'
[family]
big = { model = '(\w+) {size}', notes = '!old', is = '$1 {gpu^} of {n_layers} layers, {4*hidden} wide' }
old = { model = '{size}' }
other = { is = 'of {model}' }
)",
                       "words.toml");
  const auto family = [&](RowTexts texts) {
    rules.fill(texts);
    return text_in(texts, "family");
  };
  EXPECT_EQ(family({{"model", "Llama_70B"}, {"gpu", "h100"}, {"n_layers", "80"}, {"hidden", "64"}}),
            "llama H100 of 80 layers, 256 wide");
  EXPECT_EQ(family({{"model", "Llama 70B"}, {"notes", "OLD"}}), "old");
  EXPECT_EQ(family({{"model", "Llama"}}), "of Llama");
  EXPECT_EQ(family({{"model", "Llama"}, {"family", "mine"}}), "mine");
  EXPECT_EQ(family({{"model", "{hidden}"}, {"hidden", "64"}}), "of {hidden}")
      << "what texts hold is no template";
}

TEST(RowRules, SayWhereAFileOfRulesIsWrong) {
  EXPECT_EQ(error_of("[software]\n\nnemo = { sauce = 'x' }"),
            "words.toml:3: software.nemo: no column \"sauce\"");
  EXPECT_EQ(error_of("[softwear]\nnemo = { source = 'x' }"),
            "words.toml:2: softwear.nemo: no column \"softwear\"");
  EXPECT_EQ(error_of("[software]\nnemo = { source = 'a(' }")
                .find("words.toml:2: software.nemo: source = 'a(': not a regular expression: "),
            0U);
  EXPECT_EQ(error_of("[software]\nnemo = { source = '{maker}' }"),
            "words.toml:2: software.nemo: no word {maker}");
  EXPECT_EQ(error_of("[sharding]\nzero4 = {}"),
            "words.toml:2: sharding.zero4: no value \"zero4\": wanted ddp, zero1, zero2, fsdp");
  EXPECT_EQ(error_of("[software]\nnemo = 'x'"),
            "words.toml:2: software.nemo: wanted VALUE = { COLUMN = 'regular expression' }");
  EXPECT_EQ(error_of("[software]\nnemo = { source = 1 }"),
            "words.toml:2: software.nemo.source: wanted a text, got the integer 1");
  EXPECT_EQ(error_of("[shape.mine.columns]\nsauce = 'x'"),
            "words.toml:2: shape.mine.columns.sauce: no column \"sauce\"");
  EXPECT_EQ(error_of("[shape.mine]\nsource = 'x'"),
            "words.toml:2: shape.mine.source: wanted shape.NAME.columns or shape.NAME.texts");
}

TEST(RowRules, ReadTextsOfAnyLength) {
  std::string no;
  while (no.size() < 1'000'000) no += "no ";
  EXPECT_EQ(recompute_named(no), "none");
  std::string gpu(1'000'000, 'x');
  gpu += " H100";
  EXPECT_EQ(machine_of_gpu(gpu), "");
}

}  // namespace
}  // namespace tokamak
