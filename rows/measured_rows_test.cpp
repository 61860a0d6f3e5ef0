#include "rows/measured_rows.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/price/machine/device_spread.h"

#include "rows/row_price.h"

namespace tokamak {
namespace {

const std::string kHeader =
    "source,gpu,n_gpus,model,n_layers,hidden,ffn,heads,kv_heads,vocab,seq,gbs,mbs,tp,pp,vp,cp,dp,"
    "zero_stage_or_fsdp,precision,recompute,step_time_s,tokens_per_s_per_gpu,tflops_per_gpu,"
    "mfu_pct,notes\n";

MeasuredRun only_row(const std::string& line) {
  const std::vector<MeasuredRun> rows = parse_measured_rows(kHeader + line, "rows.csv");
  EXPECT_EQ(rows.size(), 1U);
  return rows.at(0);
}

TEST(MeasuredRows, ReadsQuotedFieldsAndStepTime) {
  const MeasuredRun row = only_row(
      "NVIDIA x,H100,16,Llama3-8B,32,4096,14336,32,8,128256,8192,256,1,1,1,,2,8,dist-opt,bf16,none,"
      "13.00,10082.44,,58.96,\"a, \"\"b\"\"\"\n");
  EXPECT_EQ(row.skipped, "");
  EXPECT_EQ(row.notes, "a, \"b\"");
  EXPECT_EQ(row.line, 2);
  EXPECT_DOUBLE_EQ(row.step_time_s, 13.0);
  EXPECT_EQ(row.measured_as, "step_time_s");
  EXPECT_EQ(row.num_microbatches(), 32);
  EXPECT_EQ(row.software, "nemo");
}

// Of groups of six every other one lies in two nodes of eight; none does in nodes of twelve.
TEST(MeasuredRows, ArePricedWhereGroupsLieWorst) {
  const MeasuredRun row = only_row(
      "ours,H100,48,Llama3-8B,32,4096,14336,32,8,128256,8192,8,1,1,1,,6,8,FSDP,bf16,none,2,,,,\n");
  const PricedRow worst = price_rows({row}, {}).at(0);
  ASSERT_EQ(worst.skipped, "");
  const PricedRow whole = price_rows({row}, {.assignments = {"nvlink.num_devices=12"}}).at(0);
  EXPECT_GT(worst.step.seconds, 1.1 * whole.step.seconds);
}

TEST(MeasuredRows, ArePricedWithTheirRecompute) {
  const auto seconds = [](const std::string& source, const std::string& recompute) {
    const MeasuredRun row = only_row(
        source + ",H100,8,Llama3-8B,32,4096,14336,32,8,128256,8192,8,1,1,1,,1,8,FSDP,bf16," +
        recompute + ",2,,,,\n");
    return price_rows({row}, {}).at(0).step.seconds;
  };
  const double none_s = seconds("tokamak", "none");
  const double ops_s = seconds("tokamak", "selective");
  const double layers_s = seconds("tokamak", "selective-layer");
  EXPECT_LT(1.01 * none_s, ops_s);
  EXPECT_LT(1.01 * ops_s, layers_s);
  EXPECT_LT(1.01 * layers_s, seconds("tokamak", "full"));
  // Megatron's is of attention alone, which flash attention has always.
  EXPECT_EQ(seconds("NVIDIA x", "none"), seconds("NVIDIA x", "selective"));
  EXPECT_LT(1.01 * seconds("NVIDIA x", "none"), seconds("NVIDIA x", "selective-layer"));
}

TEST(MeasuredRows, TurnsRatesIntoTime) {
  const MeasuredRun tokens = only_row(
      "seed 002 "
      "(torchtitan),GB200,12,Llama3-8B,32,4096,14336,32,8,128256,8192,60,5,1,1,,1,12,FSDP2,"
      "bf16,selective-op,,18284,1058.93,47.06,compile off\n");
  EXPECT_NEAR(tokens.step_time_s, 60.0 * 8192.0 / (18284.0 * 12.0), 1e-9);
  // 57.915 GFLOP is the source's own, with attention not halved; halved it is 51.5.
  EXPECT_NEAR(causal_flops_per_token(tokens), 51.5e9, 0.1e9);
  const MeasuredRun rounded = only_row(
      "NVIDIA-NeMo/Megatron-Bridge docs [26.04.01 NeMo "
      "Container],GB200,64,Llama3-70B,80,8192,28672,"
      "64,8,128256,8192,256,2,1,1,,1,64,FSDP64,fp8,,,4224,1892,,\n");
  EXPECT_EQ(rounded.measured_as, "tflops_per_gpu");
  EXPECT_NEAR(rounded.step_time_s, 449e9 * 256 * 8192 / (64 * 1892e12), 0.02);
}

TEST(MeasuredRows, NamesWhatIsMissing) {
  EXPECT_EQ(
      only_row("x,H100,16,GPT,32,4096,,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,1,,,,\n").skipped,
      "ffn");
  EXPECT_EQ(only_row("x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,,,,,\n").skipped,
            "step_time_s");
  EXPECT_NE(only_row("x,H100,16,M,,,,,,,4096,256,1,1,1,,1,16,,bf16,,1,,,,MoE EP=8\n")
                .skipped.find("mixture of experts"),
            std::string::npos);
  EXPECT_EQ(only_row("x,H100,16,M,2,64,64,4,4,64,64,256,1,2,1,,1,16,,bf16,,1,,,,\n").skipped,
            "tp 2 x pp 1 x cp 1 x dp 16 is not n_gpus 16");
  EXPECT_EQ(only_row("x,H100,16,M,2,64,64,4,4,64,64,many,1,1,1,,1,16,,bf16,,1,,,,\n").skipped,
            "gbs = many: wanted a number");
}

// A row of 64 GPUs that is priced, with another value in one column.
std::string skipped_with(const std::string& column, const std::string& value) {
  std::map<std::string, std::string> cells = {{"source", "nvidia nemo"},
                                              {"gpu", "H100"},
                                              {"n_gpus", "64"},
                                              {"model", "Llama3-8B"},
                                              {"n_layers", "32"},
                                              {"hidden", "4096"},
                                              {"ffn", "14336"},
                                              {"heads", "32"},
                                              {"kv_heads", "8"},
                                              {"vocab", "128256"},
                                              {"seq", "8192"},
                                              {"gbs", "128"},
                                              {"mbs", "1"},
                                              {"tp", "1"},
                                              {"pp", "1"},
                                              {"cp", "2"},
                                              {"dp", "32"},
                                              {"precision", "bf16"},
                                              {"recompute", "none"},
                                              {"step_time_s", "2"}};
  cells[column] = value;
  std::string header;
  std::string line;
  for (const auto& [name, cell] : cells) {
    header += name + ",";
    line += cell + ",";
  }
  return parse_measured_rows(header + "\n" + line + "\n", "rows.csv").at(0).skipped;
}

TEST(MeasuredRows, NamesTheRangeOfACount) {
  EXPECT_EQ(skipped_with("n_gpus", "64"), "");
  EXPECT_EQ(skipped_with("n_gpus", "4294967296"),
            "n_gpus = 4294967296: wanted a whole number from 1 to 1048576");
  EXPECT_EQ(skipped_with("dp", "9223372036854775807"),
            "dp = 9223372036854775807: wanted a whole number from 1 to 1048576");
  EXPECT_EQ(skipped_with("n_layers", "1000000"),
            "n_layers = 1000000: wanted a whole number from 1 to 1024");
  EXPECT_EQ(skipped_with("seq", "1e9"), "seq = 1e9: wanted a whole number from 1 to 67108864");
  EXPECT_EQ(skipped_with("gbs", "1e12"), "gbs = 1e12: wanted a whole number from 1 to 67108864");
  EXPECT_EQ(skipped_with("gbs", "3.2e7"),
            "gbs 32000000 are 1000000 microbatches of dp 32 x mbs 1: wanted at most 65536");
  EXPECT_EQ(skipped_with("mbs", "32768"),
            "mbs = 32768, seq = 8192: wanted at most 67108864 tokens in a microbatch");
  EXPECT_EQ(skipped_with("seq", "67108864"),
            "mbs = 1, seq = 67108864, vocab = 128256: wanted a product of at most 1099511627776");
  EXPECT_EQ(skipped_with("n_gpus", "-64"), "n_gpus = -64: wanted a whole number of at least 1");
  EXPECT_EQ(skipped_with("ffn", "0"), "ffn = 0: wanted a whole number of at least 1");
  EXPECT_EQ(skipped_with("vp", "0"), "") << "not stated";
  EXPECT_EQ(skipped_with("vp", "-1"), "vp = -1: wanted a whole number of at least 1");
}

TEST(MeasuredRows, CountsAreWhole) {
  EXPECT_EQ(skipped_with("mbs", "1.5"), "mbs = 1.5: wanted a whole number");
  EXPECT_EQ(skipped_with("n_gpus", "64.9"), "n_gpus = 64.9: wanted a whole number");
  EXPECT_EQ(skipped_with("vp", "2.5"), "vp = 2.5: wanted a whole number");
  EXPECT_EQ(skipped_with("n_gpus", "64.0"), "");
  EXPECT_EQ(skipped_with("hidden", "Caf\xe9"), "hidden = Caf\\xe9: wanted a number");
}

TEST(MeasuredRows, HeadsDivide) {
  EXPECT_EQ(skipped_with("hidden", "4097"),
            "hidden = 4097, heads = 32: wanted hidden that is a multiple of heads");
  EXPECT_EQ(skipped_with("kv_heads", "5"),
            "heads = 32, kv_heads = 5: wanted heads that are a multiple of kv_heads");
}

TEST(MeasuredRows, SaysWordsThatItDoesNotKnow) {
  EXPECT_EQ(skipped_with("precision", "banana"),
            "precision = banana: wanted bf16, fp16, fp8 or fp4, which are priced");
  EXPECT_EQ(skipped_with("recompute", "2 layers"),
            "recompute = 2 layers: wanted none, full, selective, selective-layer or core_attn");
  EXPECT_EQ(skipped_with("model", "Mixtral-8x7B"), "a mixture of experts, which no model here is");
}

TEST(MeasuredRows, UnreadableRatesMatterWhereThereIsNoTime) {
  EXPECT_EQ(skipped_with("mfu_pct", "~40"), "");
  EXPECT_EQ(skipped_with("tokens_per_s_per_gpu", "~9000"), "");
  EXPECT_EQ(skipped_with("step_time_s", "~2"), "step_time_s = ~2: wanted a number");
  EXPECT_EQ(
      only_row("x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,,~9,,,\n").skipped,
      "tokens_per_s_per_gpu = ~9: wanted a number");
}

// The source's own MFU beside its time: 58.96 % of 989 TFLOP/s.
TEST(MeasuredRows, TurnsAnMfuIntoTime) {
  const std::string run =
      "NVIDIA x,H100,16,Llama3-8B,32,4096,14336,32,8,128256,8192,256,1,1,1,,2,8,dist-opt,bf16,none";
  const MeasuredRun row = only_row(run + ",,,,58.96,\n");
  EXPECT_EQ(row.skipped, "");
  EXPECT_EQ(row.measured_as, "mfu_pct");
  EXPECT_NEAR(row.step_time_s, 13.0, 0.02 * 13.0);
  std::string fp8 = run + ",,,,58.96,\n";
  fp8.replace(fp8.find("bf16"), 4, "fp8");
  EXPECT_NEAR(only_row(fp8).step_time_s, 0.5 * row.step_time_s, 0.001 * row.step_time_s);
  EXPECT_EQ(
      only_row("x,Cray,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,,,,40,\n").skipped,
      "no machine file of gpu Cray");
  EXPECT_EQ(only_row(run + ",,,,140,\n").skipped, "mfu_pct = 140: wanted at most 100");
  std::string fp32 = run + ",,,,40,\n";
  fp32.replace(fp32.find("bf16"), 4, "fp32");
  EXPECT_NE(only_row(fp32).skipped.find("precision = fp32"), std::string::npos);
  EXPECT_EQ(only_row(run + ",1e-300,,,,\n").skipped,
            "step_time_s: a step of 1e-300 s: wanted 1e-06 to 1000000000 s");
}

TEST(MeasuredRows, AnUnknownMachineOfOneRowLeavesTheOthers) {
  std::string header = kHeader;
  header.insert(header.size() - 1, ",machine");
  const std::string run = "x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,,,,40,,";
  const auto rows = parse_measured_rows(header + run + "nowhere\n" + run + "\n", "x.csv");
  EXPECT_NE(rows.at(0).skipped.find("no machine \"nowhere\""), std::string::npos);
  EXPECT_EQ(rows.at(1).skipped, "");
}

TEST(MeasuredRows, ReadsLinesAsPeopleWriteThem) {
  const std::string run = "x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,2,,,,";
  const auto rows =
      parse_measured_rows(kHeader + run + "a 19\" rack\n,,,\n  \n" + run + "a 21\" rack\n" + run +
                              "a, MoE\n" + run + "EP=1 MAXSTEP=100,,\n",
                          "x.csv");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].notes, "a 19\" rack");
  EXPECT_EQ(rows[1].notes, "a 21\" rack");
  EXPECT_EQ(rows[2].skipped,
            "27 fields, the header has 26: text that has a comma stands in quotes");
  EXPECT_EQ(rows[3].skipped, "");
}

TEST(MeasuredRows, NeedsATimeOrARate) {
  std::string header = kHeader;
  header.erase(header.find("step_time_s,"), std::string("step_time_s,").size());
  const auto rows = parse_measured_rows(
      header + "x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,10000,,,\n", "x.csv");
  EXPECT_EQ(rows.at(0).skipped, "");
  EXPECT_NEAR(rows.at(0).step_time_s, 256.0 * 8192.0 / 160000.0, 1e-9);
}

// Columns that rules fill are no columns of files.
TEST(MeasuredRows, LeavesOtherColumnsAlone) {
  std::string header = kHeader;
  header.insert(header.size() - 1, ",device,family,shape");
  const auto rows = parse_measured_rows(
      header + "NVIDIA x,H100,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,2,,,,,a,b,c\n",
      "x.csv");
  EXPECT_EQ(rows.at(0).skipped, "");
  EXPECT_EQ(rows.at(0).software, "nemo");
  EXPECT_EQ(rows.at(0).family, "nemo H100 bf16");
}

TEST(MeasuredRows, BoundsWhatAPipelineRuns) {
  const MeasuredRun row = only_row(
      "NVIDIA "
      "x,H100,64,Llama,128,256,512,8,4,1024,128,16384,1,1,64,1,1,1,dist-opt,bf16,none,1,,,,\n");
  ASSERT_EQ(row.skipped, "");
  const PricedRow priced = price_rows({row}, {}).at(0);
  EXPECT_EQ(priced.skipped,
            "pp 64 x vp 1 x 16384 microbatches: wanted a product of at most 131072");
}

TEST(MeasuredRows, RepliesInUtf8) {
  MeasuredRun row;
  row.model = "Caf\xe9-7B";
  const PricedRow priced{.run = row, .skipped = "a size of 0"};
  EXPECT_NE(to_json(priced).find("Caf\xef\xbf\xbd-7B"), std::string::npos) << to_json(priced);
}

TEST(MeasuredRows, RefusesAssignmentsThatNoMachineTakes) {
  const MeasuredRun row = only_row(
      "NVIDIA x,H100,16,Llama,4,256,512,8,4,1024,128,8,1,2,2,2,2,2,dist-opt,fp8,none,1,,,,\n");
  MeasuredRun skipped = row;
  skipped.skipped = "mbs";
  EXPECT_THROW(price_rows({row}, {.assignments = {"device.banana=1"}}), Error);
  EXPECT_THROW(price_rows({skipped}, {.assignments = {"device.banana=1"}}), Error);
  EXPECT_EQ(price_rows({row}, {.assignments = {"nvlink.efficiency=0.8"}}).at(0).skipped, "");
}

const std::string kVTrainColumns =
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor "
    "parallelism,data parallelism,pipeline parallelism,iteration time (ms)";

TEST(MeasuredRows, ReadsVTrain) {
  const auto rows = parse_measured_rows(kVTrainColumns +
                                            "\n"
                                            "8.0,32,4,1024,16,24,1024,2,2,2,219.732754\n"
                                            "64,512,8,3072,32,30,2048,2,32,1,3975.2\n",
                                        "vtrain.csv");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1].number, 2);
  EXPECT_EQ(rows[1].line, 3);
  EXPECT_EQ(rows[0].skipped, "");
  EXPECT_NEAR(rows[0].step_time_s, 0.219732754, 1e-12);
  EXPECT_EQ(rows[0].ffn, 4096);
  EXPECT_EQ(rows[0].recompute.mode, RecomputePolicy::Mode::kNone);
  EXPECT_EQ(rows[0].machine, "a100-80-cloud+vtrain");
  EXPECT_EQ(rows[0].source, "vTrain");
  EXPECT_EQ(rows[0].model, "GPT 24x1024");
  EXPECT_FALSE(rows[0].gated_mlp);
  EXPECT_EQ(rows[0].measured_as, "iteration time (ms)");
  EXPECT_EQ(rows[0].vocab, 50256) << "whole shares of two ranks";
  EXPECT_EQ(rows[1].recompute.mode, RecomputePolicy::Mode::kFull);
  EXPECT_EQ(rows[1].vocab, 51200);
}

TEST(MeasuredRows, NamesColumnsOfVTrain) {
  const auto rows = parse_measured_rows(kVTrainColumns +
                                            "\n"
                                            "8,32,4,1024,16,24,,2,2,2,219.7\n"
                                            "8,32,4,1024,16,24,1024,2,2,2,\n"
                                            "8,32,4,1024,16,1e9,1024,2,2,2,219.7\n",
                                        "vtrain.csv");
  EXPECT_EQ(rows.at(0).skipped, "sequence length");
  EXPECT_EQ(rows.at(1).skipped, "iteration time (ms)");
  EXPECT_EQ(rows.at(2).skipped, "# layers = 1e9: wanted a whole number from 1 to 1024");
}

TEST(MeasuredRows, SkipsAByteOrderMark) {
  const auto rows = parse_measured_rows("\xEF\xBB\xBF" + kVTrainColumns +
                                            "\r\n"
                                            "8,32,4,1024,16,24,1024,2,2,2,219.732754\r\n",
                                        "ground_truth_single.csv");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].num_gpus, 8);
  EXPECT_NEAR(rows[0].step_time_s, 0.219732754, 1e-12);
}

TEST(MeasuredRows, RefusesOtherFiles) {
  EXPECT_THROW(parse_measured_rows("a,b\n1,2\n", "x.csv"), Error);
}

TEST(MeasuredRows, PlansARow) {
  const MeasuredRun row = only_row(
      "NVIDIA x,H100,16,Llama,4,256,512,8,4,1024,128,8,1,2,2,2,2,2,dist-opt,fp8,none,1,,,,\n");
  ASSERT_EQ(row.skipped, "");
  const PlannedRow planned(row, price::load_machine(row.machine));
  ASSERT_EQ(planned.ranks().size(), 2U);
  EXPECT_EQ(planned.ranks()[1].rank, 8);
  EXPECT_EQ(row.precision, price::Precision::kFp8);
  EXPECT_EQ(row.machine, "h100-published+nemo+nemo-hopper");
  EXPECT_EQ(row.family, "nemo H100 fp8");
}

TEST(MeasuredRows, TwinsOfStagesPriceAsTheirPlans) {
  const MeasuredRun row = only_row(
      "NVIDIA x,H100,32,Llama,16,256,512,8,4,1024,128,32,1,2,4,2,2,2,dist-opt,bf16,none,1,,,,\n");
  ASSERT_EQ(row.skipped, "");
  const price::Machine machine = price::load_machine(row.machine);
  const price::Machine slowest = price::slowest_of(filled_as_of_run(row, machine), row.num_gpus);
  const Target target{.backend = "gpu", .arch = 90};
  std::vector<std::unique_ptr<PlannedRun>> runs;
  std::vector<price::PricedRank> ranks;
  for (int r = 0; r < row.pp; ++r) {
    const RunShape shape = shape_of_row(row, machine.software, r);
    runs.push_back(std::make_unique<PlannedRun>(spec_of_row(row), shape, target));
    ranks.push_back({.plan = &runs.back()->plan(), .rank = shape.distribute.rank});
  }
  const double planned = price::price_step(ranks, static_cast<int>(row.num_microbatches()), slowest,
                                           {.linear = row.precision, .device_graphs = false})
                             .seconds;
  const double twins = price_planned_row(row, PlannedRow(row, machine), machine).seconds;
  EXPECT_EQ(twins, planned);
}

TEST(MeasuredRows, SummarizesErrors) {
  const ErrorSummary s = summarize({0.01, -0.02, 0.03, -0.1});
  EXPECT_EQ(s.count, 4);
  EXPECT_DOUBLE_EQ(s.mean, 0.04);
  EXPECT_DOUBLE_EQ(s.median, 0.025);
  EXPECT_DOUBLE_EQ(s.p90, 0.1);
  EXPECT_DOUBLE_EQ(s.worst, 0.1);
  EXPECT_DOUBLE_EQ(s.bias, -0.02);
}

TEST(MeasuredRows, NvidiaTakesAsManyNodesOfEveryRack) {
  MeasuredRun row{.even_racks = true};
  const auto rack = [&](int64_t num_gpus) {
    row.num_gpus = num_gpus;
    return filled_as_of_run(row, price::load_machine("gb200")).levels[0].num_devices;
  };
  EXPECT_EQ(rack(64), 72);
  EXPECT_EQ(rack(72), 72);
  EXPECT_EQ(rack(128), 64);
  EXPECT_EQ(rack(144), 72);
  EXPECT_EQ(rack(80), 40);
  row.even_racks = false;
  EXPECT_EQ(rack(128), 72);
  const auto is_even = [](const std::string& source) {
    return only_row(source + ",GB200,16,M,32,4096,1,32,8,51200,8192,256,1,1,1,,1,16,,bf16,,1,,,,\n")
        .even_racks;
  };
  EXPECT_TRUE(is_even("NVIDIA/dgxc-benchmarking"));
  EXPECT_FALSE(is_even("torchtitan"));
}

// The folder of measurements lies beside a checkout, or does not.
TEST(MeasuredRows, ReadsTheFilesBesideTheCheckout) {
  const std::filesystem::path folder =
      std::filesystem::path(TOK_SOURCE_DIR) / ".." / "shared" / "measured";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const auto count = [](const std::vector<MeasuredRun>& rows) {
    return std::count_if(rows.begin(), rows.end(), [](const MeasuredRun& r) {
      return r.skipped.empty() && !r.machine.empty();
    });
  };
  const auto runs = read_measured_rows(folder / "training_runs.csv");
  EXPECT_EQ(runs.size(), 715U);
  EXPECT_EQ(count(runs), 328 + 98);
  EXPECT_EQ(std::count_if(runs.begin(), runs.end(),
                          [](const MeasuredRun& r) {
                            return r.skipped.empty() && !r.machine.empty() && r.sizes_by_name;
                          }),
            98);
  EXPECT_EQ(count(read_measured_rows(folder / "vtrain_multi_node.csv")), 55);
  EXPECT_EQ(count(read_measured_rows(folder / "vtrain_single_node.csv")), 960);
}

}  // namespace
}  // namespace tokamak
