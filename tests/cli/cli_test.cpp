#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/price/machine/machine.h"

#include "tests/fixtures/program.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

int64_t lines_in(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Cli, VersionAndHelpGoToStdout) {
  const auto version = run_program({TOK_PROGRAM, "--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_NE(version.out.find("0.2.0"), std::string::npos) << version.out;
  const auto help = run_program({TOK_PROGRAM, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* verb : {"train", "plan", "price", "search", "sweep", "bench", "generate",
                           "convert", "tokenizer", "doctor"}) {
    EXPECT_NE(help.out.find(verb), std::string::npos) << verb;
  }
}

TEST(Cli, HelpOfTheFlavorListsWhatEachModelHas) {
  const auto run = run_program({TOK_PROGRAM, "help", "model.flavor"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("\n  llama3: debugmodel, "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\n  gpt2: 124M, 355M, 774M, 1.5B, hf\n"), std::string::npos) << run.out;
}

TEST(Cli, TheSchemaOfConfigurationFilesIsJson) {
  const auto run = run_program({TOK_PROGRAM, "help", "--schema"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto schema = nlohmann::json::parse(run.out);
  EXPECT_EQ(schema["properties"]["training"]["properties"]["steps"]["type"], "integer");
}

TEST(Cli, HelpOfAVerbIsItsOwn) {
  const auto help = run_program({TOK_PROGRAM, "help", "train"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  EXPECT_EQ(help.out, run_program({TOK_PROGRAM, "train", "--help"}).out);
  EXPECT_EQ(run_program({TOK_PROGRAM, "help", "--help"}).exit_code, 0);
}

TEST(Cli, AUsersMistakeIsOneLineAndExitCode2) {
  const auto verb = run_program({TOK_PROGRAM, "trian"});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_EQ(lines_in(verb.err), 1) << verb.err;
  const auto file = run_program({TOK_PROGRAM, "train", "no_such_file.toml"});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_NE(file.err.find("no_such_file.toml"), std::string::npos) << file.err;
}

TEST(Cli, ATracedStepLeavesATraceAndATableOfOps) {
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("tokamak_trace_{}", static_cast<int>(getpid()));
  const auto run =
      run_program({TOK_PROGRAM, "train", "--job.dump_folder=" + folder.string(), "--job.device=cpu",
                   "--training.dataset=synthetic", "--training.seq_len=32", "--training.steps=2",
                   "--profiling.enable_profiling", "--profiling.profile_freq=2",
                   "--profiling.save_traces_folder=traces"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto at = folder / "traces" / "iteration_2";
  const Json trace = parse_json(read_file(at / "rank0_trace.json"), "trace");
  EXPECT_GT(trace.at("traceEvents").size(), 100U);
  const std::string ops = read_file(at / "rank0_ops.txt");
  for (const char* part : {"linear_grad_weight", "attention_grad", "exposed communication", "idle"})
    EXPECT_NE(ops.find(part), std::string::npos) << part << "\n" << ops;
  std::filesystem::remove_all(folder);
}

TEST(Cli, BenchOpMeasuresEveryOpAndOneOfThem) {
  const auto json_lines = [](const std::string& out) {
    std::map<std::string, int> ops;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) {
      if (line.empty() || line[0] != '{') continue;
      const Json json = parse_json(line, "line");
      EXPECT_GT(json.at("seconds").get<double>(), 0.0) << line;
      EXPECT_GE(json.at("runs").get<int>(), 5) << line;
      ++ops[json.at("op").get<std::string>()];
    }
    return ops;
  };
  for (const char* dtype : {"float32", "bfloat16"}) {
    const auto all = run_program({TOK_PROGRAM, "bench", "op", "all", "--device", "cpu", "--seconds",
                                  "0.001", "--dtype", dtype});
    EXPECT_EQ(all.exit_code, 0) << all.err;
    const auto ops = json_lines(all.out);
    EXPECT_EQ(ops.size(), 28U) << all.out;
    for (const char* op : {"linear_grad_weight", "attention_grad", "add_rms_norm", "adamw", "nll"})
      EXPECT_EQ(ops.count(op), 1U) << op;
  }
  const auto one = run_program({TOK_PROGRAM, "bench", "op", "rms_norm_grad", "--device", "cpu",
                                "--seconds", "0.001", "--dims", "7x33"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(json_lines(one.out), (std::map<std::string, int>{{"rms_norm_grad", 1}}));
  EXPECT_NE(one.out.find("[7, 33]"), std::string::npos) << one.out;
  const std::vector<std::vector<std::string>> mistakes{{"no_such_op"},
                                                       {"add", "--dims", "4"},
                                                       {"add", "--dims", "4y4"},
                                                       {"all", "--dims", "4x4"},
                                                       {"add", "--threads", "-1"},
                                                       {"add", "--threads", "100000"},
                                                       {"add", "--seconds", "nan"},
                                                       {"add", "--seconds", "-1"},
                                                       {"add", "--seconds", "inf"}};
  for (const auto& words : mistakes) {
    std::vector<std::string> call{TOK_PROGRAM, "bench", "op", "--device", "cpu"};
    call.insert(call.end(), words.begin(), words.end());
    const auto run = run_program(call);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_EQ(lines_in(run.err), 1) << run.err;
  }
}

TEST(Cli, BenchOpTimesMatmulsIn8Bits) {
  const std::vector<std::string> call{TOK_PROGRAM, "bench", "op",        "float8",
                                      "--device",  "cpu",   "--seconds", "0.001"};
  const auto run = run_program(call);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::set<std::string> ops;
  std::istringstream text(run.out);
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line[0] != '{') continue;
    const Json json = parse_json(line, "line");
    ops.insert(json.at("op").get<std::string>());
  }
  EXPECT_EQ(ops,
            (std::set<std::string>{"amax", "quantize", "transpose_quantized", "scaled_matmul"}));
  for (const char* scales : {"tensor both ways", "rows transposed", "1x128", "128x128"})
    EXPECT_NE(run.out.find(scales), std::string::npos) << scales << run.out;
  // Machine files state rates of matmuls in the compute dtype.
  auto calibrated = call;
  calibrated.insert(calibrated.end(), {"--calibration", "codes.toml"});
  EXPECT_EQ(run_program(calibrated).exit_code, 2);
}

TEST(Cli, BenchModelTimesAStepOrMore) {
  const std::vector<std::vector<std::string>> mistakes{
      {"--steps", "0"}, {"--batch", "0"}, {"--seq-len", "-1"}, {"--warmup", "-1"}};
  for (const auto& words : mistakes) {
    std::vector<std::string> call{TOK_PROGRAM, "bench",   "model", "--device", "cpu",    "--layers",
                                  "1",         "--dim",   "64",    "--heads",  "4",      "--mlp",
                                  "128",       "--vocab", "256",   "--dtype",  "float32"};
    call.insert(call.end(), words.begin(), words.end());
    const auto run = run_program(call);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_EQ(run.out, "");
    EXPECT_NE(run.err.find(words[0] + " " + words[1]), std::string::npos) << run.err;
  }
}

TEST(Cli, BenchModelPrintsARowForEachShape) {
  std::vector<std::string> call{TOK_PROGRAM, "bench",   "model",  "--device", "cpu", "--layers",
                                "1",         "--dim",   "64",     "--heads",  "4",   "--kv-heads",
                                "2",         "--mlp",   "128",    "--vocab",  "256", "--steps",
                                "1",         "--dtype", "float32"};
  const auto rows = [&] {
    const auto run = run_program(call);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return count_lines(run.out);
  };
  const auto by_op = rows();
  call.emplace_back("--by-shape");
  EXPECT_GT(rows(), by_op);
}

TEST(Cli, BenchDecodeTimesTokensAfterAContext) {
  const auto run = run_program({TOK_PROGRAM, "bench", "decode", "llama3:debugmodel", "--device",
                                "cpu", "--context", "4", "--tokens", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("after 4 tokens"), std::string::npos) << run.out;
}

TEST(Cli, BenchModelTakesTheHeadIn8BitsOnRequest) {
  std::vector<std::string> call{TOK_PROGRAM, "bench",    "model",     "--device", "cpu", "--layers",
                                "1",         "--dim",    "64",        "--heads",  "4",   "--mlp",
                                "128",       "--vocab",  "256",       "--steps",  "1",   "--dtype",
                                "float32",   "--float8", "tensorwise"};
  const auto blocks = run_program(call);
  EXPECT_EQ(blocks.exit_code, 0) << blocks.err;
  EXPECT_NE(blocks.out.find("\nlinear "), std::string::npos) << blocks.out;
  EXPECT_NE(blocks.out.find("\"float8_head\":false"), std::string::npos) << blocks.out;
  call.emplace_back("--float8-head");
  const auto all = run_program(call);
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(all.out.find("\nlinear"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("\"float8_head\":true"), std::string::npos) << all.out;
  const auto alone = run_program({TOK_PROGRAM, "bench", "model", "--float8-head"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_EQ(alone.err, "tokamak: --float8-head: wanted --float8 RECIPE with it\n");
}

TEST(Cli, PlanSaysWhichMatmulsAreIn8Bits) {
  const auto plan = [](const std::vector<std::string>& words) {
    std::vector<std::string> call{TOK_PROGRAM,
                                  "plan",
                                  "--why",
                                  "--model.flavor=debugmodel",
                                  "--training.dataset=synthetic",
                                  "--model.converters=quantize.linear.float8"};
    call.insert(call.end(), words.begin(), words.end());
    return run_program(call).out;
  };
  const std::string key = "--quantize.linear.float8.";
  const auto expect_line = [](const std::string& out, const std::string& line) {
    EXPECT_NE(out.find(line + "\n"), std::string::npos) << line << "\n" << out;
  };
  expect_line(plan({}), "float8: tensorwise, 24 matmuls, head in float8; scales per matmul");
  const std::string filtered = plan({key + "filter_fqns=output,layers.1.feed_forward"});
  expect_line(filtered,
              "float8: lm_head.weight stays in the compute dtype: quantize.linear.float8."
              "filter_fqns has \"output\"");
  expect_line(filtered, "float8: tensorwise, 22 matmuls, head in bfloat16; scales per matmul");
  const std::string rowwise = plan({key + "recipe_name=rowwise", "--world-size=2"});
  expect_line(rowwise,
              "float8: rowwise loses small gradients of logits in E4M3; \"output\" in "
              "quantize.linear.float8.filter_fqns leaves the head in bfloat16");
  expect_line(rowwise,
              "float8: rowwise, 24 matmuls, head in float8; scales per matmul; weights travel in "
              "bfloat16");
  const std::string modules = plan({key + "scales_per=module", key + "filter_fqns=lm_head"});
  expect_line(modules, "float8: tensorwise, 42 matmuls, head in bfloat16; scales per module");
}

TEST(Cli, BenchOpWritesAMachineFile) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("tokamak_calibration_{}.toml", static_cast<int>(getpid()));
  const std::vector<std::string> bench{
      TOK_PROGRAM, "bench", "op",      "all",     "--device",      "cpu",
      "--seconds", "0.001", "--dtype", "float32", "--calibration", file.string()};
  const auto run = run_program(bench);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const price::Machine own = price::load_machine(file.string());
  EXPECT_GT(price::get_number(own, "device.peak_flops_fp32"), 1e8);
  EXPECT_GT(price::get_number(own, "device.memory_bytes_per_s"), 1e8);
  EXPECT_EQ(price::get_number(own, "device.gemm_efficiency_fp32"), 1.0);
  const auto priced =
      run_program({TOK_PROGRAM, "plan", "--model.name=llama3", "--model.flavor=debugmodel",
                   "--training.dataset=synthetic", "--training.mixed_precision_param=float32",
                   "--cluster", file.string(), "--gpus", "1"});
  EXPECT_EQ(priced.exit_code, 0) << priced.err;
  EXPECT_NE(priced.out.find("the fp32 peak"), std::string::npos) << priced.out;
  std::vector<std::string> refine = bench;
  refine.insert(refine.end(), {"--machine", "h100-published"});
  EXPECT_EQ(run_program(refine).exit_code, 0);
  const price::Machine h100 = price::load_machine("h100-published+" + file.string());
  EXPECT_EQ(price::get_number(h100, "device.peak_flops_fp32"), 67e12);
  EXPECT_LT(price::get_number(h100, "device.gemm_efficiency_fp32"), 0.5);
  // Of an H200 the cold rates are known; what is measured is what power sustains.
  refine.back() = "h200";
  EXPECT_EQ(run_program(refine).exit_code, 0);
  const price::Machine h200 = price::load_machine("h200+" + file.string());
  EXPECT_EQ(price::get_number(h200, "device.gemm_efficiency_fp32"),
            price::get_number(price::load_machine("h200"), "device.gemm_efficiency_fp32"));
  EXPECT_LT(price::get_number(h200, "device.gemm_sustained_efficiency"), 0.5);
  std::filesystem::remove(file);
  refine.back() = "h2000";
  const auto unknown = run_program(refine);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("no machine \"h2000\""), std::string::npos) << unknown.err;
  const auto lost =
      run_program({TOK_PROGRAM, "bench", "op", "add", "--device", "cpu", "--calibration", "no/x"});
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_EQ(lost.out, "") << "nothing is timed";
  EXPECT_NE(lost.err.find("no/x"), std::string::npos) << lost.err;
}

TEST(Cli, PriceSaysThatCappedScoresAreNotPriced) {
  for (const char* name : {"gemma2", "gemma3"}) {
    const auto priced = run_program(
        {TOK_PROGRAM, "price", "--cluster=h100", "--gpus=1", fmt::format("--model.name={}", name)});
    ASSERT_EQ(priced.exit_code, 0) << priced.err;
    EXPECT_EQ(priced.err.find("not priced: the caps of scores") != std::string::npos,
              std::string(name) == "gemma2")
        << priced.err;
  }
}

TEST(Cli, PlanShowsThePipelineScheduleOfTheKeys) {
  const auto plan =
      run_program({TOK_PROGRAM, "plan", "--print-schedule",
                   "--parallelism.pipeline_parallel_degree=4", "--training.local_batch_size=8"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.out.find("1F1B: 4 ranks, 4 stages, 8 microbatches; 33 units of time"),
            std::string::npos)
      << plan.out;
  EXPECT_NE(plan.out.find("\nrank 3 .  .  .  F0 B0--- F1"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("stage 3 on rank 3: layer 5, norm, output\n"), std::string::npos)
      << plan.out;
  const auto wrong = run_program(
      {TOK_PROGRAM, "plan", "--print-schedule", "--parallelism.pipeline_parallel_degree=16"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("parallelism.pipeline_parallel_degree = 16"), std::string::npos)
      << wrong.err;
}

}  // namespace
}  // namespace tokamak
