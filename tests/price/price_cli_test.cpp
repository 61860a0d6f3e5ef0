// `tokamak price`, and `plan --cluster`, which is the same: what it prints and writes, and what it
// says of mistakes.
#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/test_page.h"

#include "tests/fixtures/price_program.h"

namespace tokamak {
namespace {

ProgramResult plan(const Words& words, const std::filesystem::path& folder = ".") {
  return run_priced("plan", "1B", 4096, words, folder);
}

ProgramResult price(const Words& words) {
  return run_priced("price", "1B", 4096, words);
}

TEST(PriceCli, ATableOfTimeMemoryAndDays) {
  const auto result = plan({"--cluster", "h100", "--gpus", "8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"step  ", "tokens/s/GPU", "torchtitan", "Megatron-LM", "NeMo 24.09",
                           "GEMM", "attention", "memory-bound", "exposed communication", "bubble",
                           "optimizer moments", "peak", "GPU-hours", "checkpoint", "goodput"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  // The first number of each line ends in the same column.
  for (const char* label :
       {"\nstep ", "\ntokens/s ", "\ntokens/s/GPU ", "\n  torchtitan ", "\n  GEMM ", "\n  peak ",
        "\n1e+12 tokens ", "\ncheckpoint ", "\ngoodput "}) {
    const size_t begin = result.out.find(label);
    ASSERT_NE(begin, std::string::npos) << label;
    const size_t number = result.out.find_first_not_of(' ', begin + std::string(label).size());
    EXPECT_EQ(result.out.find_first_of(" \n", number) - begin - 1, 38U) << label << result.out;
  }
}

TEST(PriceCli, TheSameAsJsonAndTwiceTheSameBytes) {
  const Words words{"--cluster=h100", "--gpus=8", "--json", "--tokens=2e12"};
  const auto result = plan(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, plan(words).out);
  const Json json = parse_json(result.out, "report");
  EXPECT_EQ(json.at("gpus"), 8);
  const double step_s = json.at("step_time_s");
  double sum = 0.0;
  for (const auto& [name, seconds] : json.at("time_s").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, step_s, 1e-9 * step_s);
  EXPECT_NEAR(json.at("tokens_per_s").get<double>() * step_s, json.at("tokens_per_step"), 1e-3);
  EXPECT_NEAR(json.at("days").get<double>() * 86400.0, 2e12 / json.at("tokens_per_s").get<double>(),
              1.0);
  EXPECT_EQ(json.at("flops").size(), 4U);
  EXPECT_TRUE(json.at("memory").at("fits").get<bool>());
}

TEST(PriceCli, APresetAsJsonHasWhatWasPublished) {
  const auto result = run_program({TOK_PROGRAM, "plan", "--preset", "nemo-405b-32-bf16", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "report");
  EXPECT_EQ(json.at("published").at("step_time_s"), 8.85);
  EXPECT_TRUE(json.at("published").at("tflops_per_gpu").is_null());
}

TEST(PriceCli, WritesATraceAndAPage) {
  const ScratchFolder folder;
  const auto result =
      plan({"--cluster", "h100", "--gpus", "4", "--parallelism.pipeline_parallel_degree=2",
            "--training.local_batch_size=4", "--trace", "step.json", "--html", "step.html"},
           folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json trace = parse_json(read_file(folder.path() / "step.json"), "trace");
  std::vector<int> ranks;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") ranks.push_back(event.at("pid"));
  }
  EXPECT_GT(std::count(ranks.begin(), ranks.end(), 0), 100);
  EXPECT_GT(std::count(ranks.begin(), ranks.end(), 2), 100) << "the first rank of stage 1";
  const Json blocks = page_data(read_file(folder.path() / "step.html")).at("blocks");
  EXPECT_EQ(std::count_if(blocks.begin(), blocks.end(),
                          [](const Json& block) { return block.contains("chart"); }),
            3);
}

// The last rank of tp has the smallest share of 50,257 words and needs most memory; it has no
// times.
TEST(PriceCli, DrawsMemoryOfARankThatIsPriced) {
  const ScratchFolder folder;
  const auto result =
      plan({"--cluster=h200", "--gpus=2", "--model.name=gpt2", "--model.flavor=355M",
            "--training.seq_len=1024", "--parallelism.tensor_parallel_degree=2", "--html=a.html"},
           folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("memory of rank 1 "), std::string::npos) << result.out;
  EXPECT_NE(read_file(folder.path() / "a.html").find("Memory of rank 0\""), std::string::npos);
}

TEST(PriceCli, SaysWherePricesAreUnverified) {
  const auto amd = plan({"--cluster", "mi300x", "--gpus", "8"});
  EXPECT_NE(amd.out.find("\nunverified: no price on AMD MI300X"), std::string::npos) << amd.out;
  const auto json = plan({"--preset", "frontier-8b-832-nodes", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const Json report = Json::parse(json.out);
  EXPECT_EQ(report.at("gpus"), 6656);
  EXPECT_NE(report.at("unverified").get<std::string>().find("MI250X"), std::string::npos);
  const auto known = plan({"--cluster", "h100", "--gpus", "8", "--json"});
  EXPECT_TRUE(Json::parse(known.out).at("unverified").is_null());
}

TEST(PriceCli, PricesOtherSoftwareOnTheSameMachine) {
  const auto seconds = [](const char* cluster) {
    const auto result = plan({cluster, "--gpus=12", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out).at("step_time_s").get<double>();
  };
  EXPECT_GT(seconds("--cluster=gb200+torchtitan"), seconds("--cluster=gb200"));
  const auto gone = plan({"--cluster=gb200", "--gpus=8", "--software=nemo"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_NE(gone.err.find("--software nemo: name it in --cluster"), std::string::npos) << gone.err;
}

TEST(PriceCli, PricesMxfp8WhereTensorCoresMultiplyIt) {
  const std::string mx = "--model.converters=quantize.linear.mx";
  for (const std::string cluster : {"b200", "gb200"}) {
    const auto result = plan({"--cluster", cluster, "--gpus=4", "--json", mx});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Json::parse(result.out).at("precision"), "fp8");
  }
  const auto hopper = plan({"--cluster=h200", "--gpus=4", mx});
  EXPECT_EQ(hopper.exit_code, 2) << hopper.out;
  EXPECT_NE(hopper.err.find("model.converters: mxfp8 matmuls want sm_100 or newer, this is sm_90"),
            std::string::npos)
      << hopper.err;
  EXPECT_EQ(plan({"--cluster=h200", "--gpus=4", mx, "--precision=bf16"}).exit_code, 0);
}

TEST(PriceCli, PricesFourBitsOnlyOfSoftwareThatHasThem) {
  Words fp4{"--cluster=gb200", "--gpus=4", "--json", "--precision=fp4"};
  const auto own = plan(fp4);
  EXPECT_EQ(own.exit_code, 2) << own.out;
  EXPECT_NE(own.err.find("this program has no matmuls in 4 bits"), std::string::npos) << own.err;
  fp4[0] = "--cluster=gb200+nemo";
  const auto nemo = plan(fp4);
  EXPECT_EQ(nemo.exit_code, 0) << nemo.err;
  EXPECT_EQ(Json::parse(nemo.out).at("precision"), "fp4");
  const auto nvfp4 =
      plan({"--cluster=gb200", "--gpus=4", "--model.converters=quantize.linear.nvfp4"});
  EXPECT_NE(nvfp4.err.find("not priced: model.converters"), std::string::npos) << nvfp4.err;
}

TEST(PriceCli, SweepsNumbersKeysAndGpus) {
  const ScratchFolder folder;
  const auto gpus = plan(
      {"--cluster", "h100", "--sweep", "gpus=8,16,64,weak", "--csv", "a.csv", "--html", "a.html"},
      folder.path());
  ASSERT_EQ(gpus.exit_code, 0) << gpus.err;
  const std::string csv = read_file(folder.path() / "a.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4) << csv;
  EXPECT_EQ(csv.rfind("gpus,step_time_s,", 0), 0U) << csv;
  EXPECT_NE(read_file(folder.path() / "a.html").find("tokens/s/GPU"), std::string::npos);

  const auto json_of = [&](const std::string& sweep) {
    const auto result =
        plan({"--cluster", "h100", "--gpus", "8", "--json", "--training.local_batch_size=2",
              "--training.global_batch_size=32", "--sweep", sweep});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, sweep);
  };
  const Json strong = json_of("gpus=8,16,strong");
  EXPECT_EQ(strong[0].at("tokens_per_step"), strong[1].at("tokens_per_step"));
  const Json weak = json_of("gpus=8,16");
  EXPECT_EQ(2.0 * weak[0].at("tokens_per_step").get<double>(), weak[1].at("tokens_per_step"));
  const Json links = json_of("nvlink.bytes_per_s=50GB/s,450GB/s");
  EXPECT_GT(links[0].at("step_time_s"), links[1].at("step_time_s"));
  const Json modes = json_of("activation_checkpoint.mode=full,none");
  EXPECT_GT(modes[0].at("step_time_s"), modes[1].at("step_time_s"));
  EXPECT_LT(modes[0].at("memory").at("peak_bytes"), modes[1].at("memory").at("peak_bytes"));
}

TEST(PriceCli, ASearchAsJsonHasWhatItsTextHas) {
  const ScratchFolder folder;
  const Words words{"--model.flavor=debugmodel", "--cluster=h100", "--gpus=2", "--search",
                    "--training.global_batch_size=4"};
  Words with_json = words;
  with_json.insert(with_json.end(), {"--json", "--write=a.toml"});
  const auto json_run = plan(with_json, folder.path());
  ASSERT_EQ(json_run.exit_code, 0) << json_run.err;
  const Json best = parse_json(json_run.out, "search").at("best");
  const std::string text = plan(words).out;
  EXPECT_EQ(best.size(), 10U);
  for (const Json& found : best) {
    for (const char* part : {"mesh", "schedule", "recompute", "sharding", "precision", "reason"}) {
      const std::string fact = found.value(part, "");
      EXPECT_NE(text.find(fact), std::string::npos) << fact << "\n" << text;
    }
  }
  const auto priced = run_program(
      {TOK_PROGRAM, "plan", "a.toml", "--cluster=h100", "--gpus=2", "--json"}, folder.path());
  EXPECT_EQ(parse_json(priced.out, "plan").at("step_time_s"), best[0].at("step_time_s"));
}

TEST(PriceCli, ASearchSaysWhatItLeavesOut) {
  const auto result = plan({"--model.flavor=debugmodel", "--cluster=h100", "--gpus=2", "--search",
                            "--training.global_batch_size=4", "--optimizer.name=Muon",
                            "--parallelism.pipeline_parallel_first_stage_less_layers=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("not priced: optimizer.name = "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(
                "not used: --parallelism.pipeline_parallel_first_stage_less_layers=2: the search"),
            std::string::npos)
      << result.err;
}

TEST(PriceCli, ASearchSaysWhereItsBatchIsFrom) {
  const Words words{"--cluster=h100", "--gpus=2", "--search", "--training.local_batch_size=3"};
  const auto result = plan(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("used for training.global_batch_size = 6 alone: --training.local_"),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("2 x h100, 6 sequences a step"), std::string::npos) << result.out;
}

TEST(PriceCli, ASearchInFp32SaysSo) {
  const auto result =
      plan({"--cluster=h100", "--gpus=2", "--search", "--training.global_batch_size=4", "--json",
            "--training.mixed_precision_param=float32"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json best = parse_json(result.out, "report").at("best").at(0);
  EXPECT_EQ(best.at("precision"), "fp32");
  EXPECT_EQ(best.at("peak_flops"), 67e12);
}

TEST(PriceCli, TakesAsManyNodesOfEveryRack) {
  const Words words{"--cluster=gb200", "--gpus=128", "--parallelism.tensor_parallel_degree=16"};
  const auto equal = plan(words);
  ASSERT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_NE(equal.out.find("64 devices of each nvlink domain of 72"), std::string::npos)
      << equal.out;
  const auto step_of = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    all.emplace_back("--json");
    return parse_json(plan(all).out, "report").at("step_time_s").get<double>();
  };
  const double equal_s = step_of({});
  EXPECT_EQ(equal_s, step_of({"--set=nvlink.num_devices=64"}));
  EXPECT_LT(equal_s, 0.9 * step_of({"--set=nvlink.num_devices=72"}));
  const auto found = plan({"--cluster=gb200", "--gpus=128", "--search"});
  EXPECT_NE(found.out.find("64 devices of each nvlink domain of 72"), std::string::npos)
      << found.out;
}

TEST(PriceCli, SaysWhereNothingIsKnownOfStorage) {
  const Words words{"--cluster=h100-sxm+hgx-hopper+infiniband-ndr+tokamak-hopper", "--gpus=8"};
  EXPECT_NE(plan(words).out.find("safe when is not known: no storage.write_bytes_per_s"),
            std::string::npos);
  Words as_json = words;
  as_json.emplace_back("--json");
  const Json parts = parse_json(plan(as_json).out, "parts");
  for (const char* unknown : {"durable_s", "load_s", "best_interval_s", "goodput"})
    EXPECT_TRUE(parts.at("checkpoint").at(unknown).is_null()) << unknown;
  as_json[0] = "--cluster=h100";
  const Json whole = parse_json(plan(as_json).out, "whole");
  EXPECT_GT(whole.at("checkpoint").at("durable_s"), 1.0);
  EXPECT_EQ(whole.at("step_time_s"), parts.at("step_time_s")) << "parts are all that it is";
}

TEST(PriceCli, SaysHowToPriceWhatItWrites) {
  const ScratchFolder folder;
  const auto written = [&](const std::string& precision) {
    return plan({"--cluster=b200", "--gpus=8", "--precision", precision, "--write=a.toml"},
                folder.path())
        .out;
  };
  EXPECT_NE(written("fp8").find("wrote the configuration to a.toml\n"), std::string::npos);
  EXPECT_NE(read_file(folder.path() / "a.toml").find("quantize.linear.float8"), std::string::npos);
  const auto again =
      plan({"--cluster=b200", "--gpus=8", "--job.config_file=a.toml", "--json"}, folder.path());
  EXPECT_EQ(Json::parse(again.out).at("precision"), "fp8");
}

TEST(PriceCli, ListsMachinesAndTheirNumbers) {
  const auto list = plan({"--cluster", "list"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("\nh100-published  DGX H100"), std::string::npos) << list.out;
  const auto numbers =
      plan({"--cluster", "h100", "--numbers", "--set", "nvlink.bytes_per_s=123 GB/s"});
  EXPECT_EQ(numbers.exit_code, 0) << numbers.err;
  EXPECT_NE(numbers.out.find("nvlink.bytes_per_s = 123 GB/s"), std::string::npos) << numbers.out;
}

TEST(PriceCli, SaysWhatWouldMakeItFit) {
  const auto result = plan({"--cluster", "h100", "--gpus", "8", "--model.flavor=70B",
                            "--activation_checkpoint.mode=none"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("does not fit"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("activation_checkpoint.mode = \"full\""), std::string::npos);
}

TEST(PriceCli, WhatIsWrittenHasTheSamePrice) {
  const ScratchFolder folder;
  const auto step_of = [&](const Words& words) {
    Words all{TOK_PROGRAM, "plan", "--gpus=8", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const auto result = run_program(all, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "report").at("step_time_s").get<double>();
  };
  const double fp8_s = step_of({"--preset=bench-llama-8b-fsdp-h200-fp8", "--write=a.toml"});
  EXPECT_EQ(step_of({"a.toml", "--cluster=h200"}), fp8_s);
  EXPECT_GT(step_of({"a.toml", "--cluster=h200", "--precision=bf16"}), fp8_s);
}

TEST(PriceCli, SaysWhatItLeavesOut) {
  const Words words{"--cluster", "h100", "--gpus", "8", "--json"};
  EXPECT_EQ(price(words).err, "");
  Words more = words;
  more.insert(more.end(), {"--optimizer.name=Muon", "--model.converters=quantize.linear.float8"});
  const auto result = price(more);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "not priced: optimizer.name = \"Muon\": only AdamW, Adam are built\n");
}

TEST(PriceCli, EveryVerbIsAFlagOfPlan) {
  struct Case {
    const char* verb;
    Words words;
    Words flags;  // of plan
    const char* note;
  };

  for (const Case& c : std::vector<Case>{
           {"price", {"--cluster=h100", "--gpus=8"}, {"--cluster=h100", "--gpus=8"}, "--cluster"},
           {"sweep",
            {"gpus=8,16", "--cluster=h100", "--set", "nvlink.latency_s=2us"},
            {"--sweep=gpus=8,16", "--cluster=h100", "--set", "nvlink.latency_s=2us"},
            "--sweep"},
           {"search",
            {"--cluster=h100", "--gpus=2", "--training.global_batch_size=4"},
            {"--search", "--cluster=h100", "--gpus=2", "--training.global_batch_size=4"},
            "--search"}}) {
    const auto verb = run_priced(c.verb, "1B", 4096, c.words);
    EXPECT_EQ(verb.exit_code, 0) << verb.err;
    const auto flag = plan(c.flags);
    EXPECT_EQ(flag.exit_code, 0) << flag.err;
    EXPECT_FALSE(verb.out.empty());
    EXPECT_EQ(verb.out, flag.out) << c.verb;
    EXPECT_EQ(verb.err.find("note:"), std::string::npos) << verb.err;
    const std::string note = std::string("note: plan ") + c.note + " is also `tokamak " + c.verb;
    EXPECT_NE(flag.err.find(note), std::string::npos) << flag.err;
  }
}

TEST(PriceCli, VerbsHaveShortHelpAndSayWhatTheyWant) {
  for (const char* verb : {"price", "search", "sweep"}) {
    const auto help = run_program({TOK_PROGRAM, verb, "--help"});
    EXPECT_EQ(help.exit_code, 0) << help.err;
    EXPECT_NE(help.out.find(std::string("usage: tokamak ") + verb), std::string::npos) << help.out;
    EXPECT_LT(std::count(help.out.begin(), help.out.end(), '\n'), 20) << help.out;
    const auto nothing = run_program({TOK_PROGRAM, verb});
    EXPECT_EQ(nothing.exit_code, 2) << nothing.out;
    EXPECT_NE(nothing.err.find(std::string(verb) + ": wanted "), std::string::npos) << nothing.err;
  }
  const auto other = price({"--cluster=h100", "--gpus=8", "--search"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("tokamak search"), std::string::npos) << other.err;
}

TEST(PriceCli, OutputThatIsLostIsAnError) {
  for (const char* words : {"--version", "price --cluster h100 --numbers"}) {
    const auto result =
        run_program({"/bin/sh", "-c", std::string(TOK_PROGRAM) + " " + words + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(PriceCli, MistakesAreOneLine) {
  struct Case {
    Words words;
    const char* part;
  };

  const Case cases[] = {
      {{"--cluster", "h1000", "--gpus", "8"}, "h1000"},
      {{"--cluster", "h100"}, "--gpus N"},
      {{"--cluster", "h100", "--gpus", "0"}, "--gpus 0"},
      {{"--cluster", "h100", "--gpus", "-8"}, "--gpus -8"},
      {{"--cluster", "h100", "--gpus", "8x"}, "--gpus 8x"},
      {{"--cluster", "h100", "--gpus"}, "--gpus"},
      {{"--gpus", "8"}, "--cluster NAME"},
      {{"--json"}, "--cluster NAME"},
      {{"--cluster", "h100", "--gpus", "8", "--parallelism.tensor_parallel_degree=3"}, "8 ranks"},
      {{"--cluster", "h100", "--gpus", "8", "--set", "network.byte_per_s=1GB/s"},
       "network.bytes_per_s"},
      {{"--cluster", "h100", "--gpus", "8", "--set", "network.bytes_per_s=-1GB/s"},
       "network.bytes_per_s"},
      {{"--cluster", "h100", "--gpus", "8", "--set", "network.bytes_per_s=1GB"},
       "network.bytes_per_s"},
      {{"--cluster", "h100", "--gpus", "8", "--precision", "int8"}, "int8"},
      {{"--cluster", "a100-80", "--gpus", "8", "--precision", "fp8"}, "fp8"},
      {{"--cluster", "h100", "--gpus", "8", "--tokens", "none"}, "--tokens none"},
      {{"--cluster", "h100", "--gpus", "8", "--sweep", "gpus"}, "key=a,b,c"},
      {{"--cluster", "h100", "--sweep", "gpus=8,,16"}, "key=a,b,c"},
      {{"--cluster", "h100", "--sweep", "gpus=8,0"}, "gpus=0"},
      {{"--cluster", "h100", "--gpus", "8", "--csv", "a.csv"}, "--sweep"},
      {{"--cluster", "h100", "--gpus", "1048577"}, "from 1 to 1048576"},
      {{"--cluster", "h100", "--gpus", "8", "--trace", "--json"}, "wanted a value, got --json"},
      {{"--cluster", "h100", "--numbers", "--clutser", "h100"}, "clutser"},
      {{"--cluster", "list", "--training.bogus=1"}, "training.bogus"},
      {{"--cluster", "h100", "--gpus", "8", "--precision", "fp8",
        "--training.mixed_precision_param=float32"},
       "wanted bfloat16"},
      {{"--cluster", "h100", "--gpus", "8", "--search", "--precision", "fp8",
        "--training.mixed_precision_param=float32"},
       "wanted bfloat16"},
      {{"--cluster", "h100", "--gpus", "8", "--job.description=\xff", "--write", "w.toml"},
       "job.description"},
      {{"--cluster", "h100", "--gpus", "8", "--clutser", "h100"}, "clutser"}};
  for (const Case& c : cases) {
    const auto result = plan(c.words);
    EXPECT_EQ(result.exit_code, 2) << c.part << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(c.part), std::string::npos) << c.part << ": " << result.err;
  }
}

}  // namespace
}  // namespace tokamak
