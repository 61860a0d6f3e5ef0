// `tokamak sweep`: points that cannot be, clusters and precisions, two sweeps at once.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/test_page.h"

#include "tests/fixtures/price_program.h"

namespace tokamak {
namespace {

ProgramResult sweep(const Words& words, const std::filesystem::path& folder = ".") {
  return run_priced("sweep", "1B", 2048, words, folder);
}

Json json_of(Words words) {
  words.emplace_back("--json");
  const auto result = sweep(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, sweep(words).out) << "twice the same bytes";
  return parse_json(result.out, "sweep");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

Json chart_of(const std::string& page) {
  return page_data(page).at("blocks").back().at("chart");
}

// Returns how many dots of this style a page has.
size_t count_points(const std::string& page, const std::string& style) {
  size_t found = 0;
  const Json chart = chart_of(page);
  for (const Json& series : chart.at("series"))
    if (series.value("style", "") == style) found += series.at("points").size();
  return found;
}

const Words kTp8OnH100{"--cluster=h100", "--parallelism.tensor_parallel_degree=8"};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PriceSweep, APointThatCannotBeSaysWhyBesideTheOthers) {
  const ScratchFolder folder;
  const auto result = sweep(
      kTp8OnH100 + Words{"--sweep=gpus=8,12,16", "--csv=a.csv", "--html=a.html"}, folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto table = lines_of(result.out);
  ASSERT_EQ(table.size(), 6U) << result.out;
  EXPECT_NE(table[3].find("parallelism.tensor_parallel_degree 8"), std::string::npos);
  EXPECT_NE(table[3].find("12 ranks"), std::string::npos) << table[3];
  EXPECT_EQ(table[4].rfind("16", 0), 0U) << "as if 12 had not been asked for";

  const auto rows = lines_of(read_file(folder.path() / "a.csv"));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_TRUE(rows[0].ends_with(",reason"));
  EXPECT_EQ(rows[2].rfind("12,,,,", 0), 0U) << rows[2];
  EXPECT_NE(rows[2].find("12 ranks"), std::string::npos);
  EXPECT_TRUE(rows[2].ends_with("\"")) << "a comma is in the reason: " << rows[2];
  for (const size_t r : {1U, 3U}) {
    EXPECT_TRUE(rows[r].ends_with(",")) << rows[r];
    EXPECT_EQ(count(rows[r], ","), count(rows[0], ","));
  }
  const std::string page = read_file(folder.path() / "a.html");
  EXPECT_EQ(count_points(page, "circle"), 2U);
  EXPECT_EQ(count_points(page, "crossRot"), 1U);

  const Json json = json_of(kTp8OnH100 + Words{"--sweep=gpus=8,12,16"});
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[0].at("sweep").at("gpus"), "8");
  EXPECT_EQ(json[1].at("gpus"), 12);
  EXPECT_NE(json[1].at("reason").get<std::string>().find("12 ranks"), std::string::npos);
  EXPECT_FALSE(json[1].contains("step_time_s"));
  EXPECT_EQ(json[2].at("tokens_per_step"), 2.0 * json[0].at("tokens_per_step").get<double>());
}

// Without --gpus the batch grows from the first mesh that can be.
TEST(PriceSweep, TheFirstPointMayBeTheOneThatCannotBe) {
  const Json json = json_of(kTp8OnH100 + Words{"--sweep=gpus=12,8,32,20"});
  ASSERT_EQ(json.size(), 4U);
  EXPECT_TRUE(json[0].contains("reason"));
  EXPECT_EQ(json[2].at("tokens_per_step"), 4.0 * json[1].at("tokens_per_step").get<double>());
  EXPECT_TRUE(json[3].contains("reason"));
  const auto table = sweep(kTp8OnH100 + Words{"--sweep=gpus=12,8"});
  EXPECT_NE(table.out.find("relative to the first line that has a price"), std::string::npos);
}

TEST(PriceSweep, ReasonsOfMachinesBatchesAndStages) {
  struct Case {
    Words words;
    size_t at;  // of the line without a price
    const char* part;
  };

  const Case cases[] = {
      {{"--cluster=h100", "--gpus=16", "--sweep=network.num_devices=0,12"}, 1, "multiple of 8"},
      {{"--cluster=h100", "--gpus=16", "--sweep=network.num_devices=8,16"}, 0, "got 8"},
      {{"--cluster=h100", "--gpus=8", "--sweep=training.global_batch_size=7,16",
        "--training.local_batch_size=2"},
       0,
       "got 7"},
      {{"--cluster=h100", "--gpus=64", "--sweep=parallelism.pipeline_parallel_degree=2,64",
        "--training.local_batch_size=64", "--parallelism.data_parallel_shard_degree=-1"},
       1,
       "64 stages"},
      {{"--cluster=h100", "--gpus=16", "--sweep=gpus=8,16", "--training.global_batch_size=16",
        "--training.local_batch_size=1", "--parallelism.tensor_parallel_degree=16"},
       0,
       "8 ranks"},
      {{"--gpus=8", "--sweep=cluster=h100,mi300x", "--set=nvlink.efficiency=0.5"},
       1,
       "xgmi.efficiency"},
  };
  for (const Case& c : cases) {
    const Json json = json_of(c.words);
    ASSERT_EQ(json.size(), 2U) << c.part;
    EXPECT_TRUE(json[1 - c.at].contains("step_time_s")) << c.part << json;
    ASSERT_TRUE(json[c.at].contains("reason")) << c.part << json;
    const std::string reason = json[c.at].at("reason");
    EXPECT_NE(reason.find(c.part), std::string::npos) << reason;
    EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
  }
}

TEST(PriceSweep, ClustersAndPrecisionsArePricedAsByThemselves) {
  const Json clusters = json_of({"--gpus=8", "--sweep=cluster=h100,h200+roce-400"});
  ASSERT_EQ(clusters.size(), 2U);
  const auto step_of = [](const Words& words) {
    const auto result = run_priced("price", "1B", 2048, words + Words{"--gpus=8", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "plan").at("step_time_s").get<double>();
  };
  EXPECT_EQ(clusters[0].at("step_time_s"), step_of({"--cluster=h100"}));
  EXPECT_EQ(clusters[1].at("step_time_s"), step_of({"--cluster=h200+roce-400"}));

  const Json precisions = json_of({"--cluster=h100", "--gpus=8", "--sweep=precision=bf16,FP8,fp4"});
  EXPECT_EQ(precisions[0].at("step_time_s"), step_of({"--cluster=h100"}));
  EXPECT_EQ(precisions[1].at("step_time_s"), step_of({"--cluster=h100", "--precision=fp8"}));
  EXPECT_EQ(precisions[1].at("precision"), "fp8");
  EXPECT_NE(precisions[2].at("reason").get<std::string>().find("fp4"), std::string::npos);
}

TEST(PriceSweep, TwoSweepsAreACurveForEachValueOfTheFirst) {
  const ScratchFolder folder;
  const Words words{"--sweep=cluster=h100,gb200", "--sweep=gpus=8,16,64"};
  const auto result = sweep(words + Words{"--csv=a.csv", "--html=a.html"}, folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 9U) << result.out;
  EXPECT_NE(result.out.find("on several machines"), std::string::npos);
  EXPECT_NE(result.out.find("of each line's peak"), std::string::npos);
  const auto rows = lines_of(read_file(folder.path() / "a.csv"));
  ASSERT_EQ(rows.size(), 7U);
  EXPECT_EQ(rows[0].rfind("cluster,gpus,step_time_s,", 0), 0U);
  EXPECT_EQ(rows[4].rfind("gb200,8,", 0), 0U) << rows[4];
  const std::string page = read_file(folder.path() / "a.html");
  EXPECT_EQ(count_points(page, "circle"), 6U);
  EXPECT_EQ(chart_of(page).at("series").size(), 6U) << "a curve, its dots and an ideal each";
  EXPECT_NE(page.find("cluster gb200"), std::string::npos);

  const Json both = json_of(words);
  const Json alone = json_of({"--cluster=gb200", "--sweep=gpus=8,16,64"});
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(both[3 + i].at("step_time_s"), alone[i].at("step_time_s"));
  // A batch that the other sweep sets grows with the GPUs.
  const Json batches =
      json_of({"--cluster=h100", "--sweep=gpus=8,16", "--sweep=training.local_batch_size=1,2"});
  EXPECT_EQ(batches[3].at("tokens_per_step"), 4.0 * batches[0].at("tokens_per_step").get<double>());
}

TEST(PriceSweep, PublishedPointsStandBesideThePresetsCurve) {
  const ScratchFolder folder;
  const auto page_of = [&](const Words& more) {
    const auto result = run_program(
        Words{TOK_PROGRAM, "sweep", "--preset=gb200-8b-3-nodes", "gpus=12,36,68", "--html=a.html"} +
            more,
        folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_file(folder.path() / "a.html");
  };
  const std::string page = page_of({});
  EXPECT_EQ(count_points(page, "circle"), 3U);
  EXPECT_EQ(count_points(page, "rectRot"), 3U) << "measured";
  EXPECT_NE(page.find("gb200-8b-17-nodes: 17581.0 tokens/s/GPU"), std::string::npos);
  EXPECT_NE(page.find("% of the first"), std::string::npos);
  EXPECT_NE(page.find("ideal: "), std::string::npos);
  EXPECT_EQ(count_points(page_of({"--model.flavor=1B"}), "rectRot"), 0U) << "another model";
}

// A line has the batch of its label or none.
TEST(PriceSweep, AStrongSweepKeepsTheOtherSweepsBatch) {
  const Json lines = json_of(
      {"--cluster=h100", "--sweep=training.local_batch_size=1,4", "--sweep=gpus=8,16,32,strong"});
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[3].at("tokens_per_step"), 4.0 * lines[0].at("tokens_per_step").get<double>());
  EXPECT_TRUE(lines[1].contains("reason"));  // 8 sequences on 16 GPUs
  for (const size_t i : {4U, 5U}) EXPECT_TRUE(lines[i].contains("reason")) << i;
}

TEST(PriceSweep, MistakesAreOneLineAndNothingIsPriced) {
  struct Case {
    Words words;
    Words parts;
  };

  const Words h100{"--cluster=h100", "--gpus=8"};
  const Case cases[] = {
      {kTp8OnH100 + Words{"--sweep=gpus=12,20"}, {"--sweep gpus", "none of 2", "12 ranks"}},
      {h100 + Words{"--sweep=gpus=8,weak,strong"}, {"--sweep gpus=8,weak", "once"}},
      {h100 + Words{"--sweep=precision=bf16,fp9"}, {"--sweep precision=fp9", "bf16, fp8 or fp4"}},
      {h100 + Words{"--sweep=precision=fp4"}, {"fp4"}},
      {h100 + Words{"--sweep=training.local_batch_size=1,x"}, {"local_batch_size", "x"}},
      {h100 + Words{"--sweep=training.local_batch_size=1,-3"}, {"local_batch_size", "-3"}},
      {h100 + Words{"--sweep=activation_checkpoint.mode=full,half"}, {"mode", "half"}},
      {h100 + Words{"--sweep=model.flavor=1B,2B"}, {"model.flavor", "2B"}},
      {h100 + Words{"--sweep=training.local_batch=1,2"}, {"training.local_batch"}},
      {h100 + Words{"--sweep=seq_len=1,2"}, {"seq_len"}},
      {h100 + Words{"--sweep=nvlink.efficiency=0.5,1.5"}, {"--sweep nvlink.efficiency=1.5"}},
      {h100 + Words{"--sweep=cluster=h200"}, {"--cluster", "--sweep cluster"}},
      {h100 + Words{"--precision=fp8", "--sweep=precision=bf16"}, {"--precision", "--sweep"}},
      {{"--gpus=8", "--sweep=cluster=h100,b9"}, {"\"b9\""}},
      {{"--gpus=8", "--sweep=cluster=h100,list"}, {"list"}},
      {{"--gpus=8", "--sweep=cluster=h100,mi300x", "--sweep=nvlink.efficiency=0.5,-1"},
       {"--sweep nvlink.efficiency=-1"}},
      {{"--gpus=8", "--sweep=cluster=h100,mi300x", "--set=link.efficiency=1"},
       {"--set link.efficiency"}},
      {{"--sweep=cluster=h100"}, {"--gpus N"}},
      {{"--gpus=8", "--sweep=cluster="}, {"key=a,b,c"}},
      {{"--sweep=precision=bf16,fp8", "--gpus=8"}, {"--cluster NAME"}},
      {h100 + Words{"--sweep=gpus=8", "--sweep=gpus=16"}, {"gpus", "twice"}},
      {h100 + Words{"--sweep=gpus=8", "--sweep=precision=bf16", "--sweep=training.seq_len=512"},
       {"--sweep training.seq_len=512", "at most 2"}},
      {h100 + Words{"--sweep=precision=bf16", "--training.local_batch_size=0"},
       {"local_batch_size", "0"}},
  };
  for (const Case& c : cases) {
    const ScratchFolder folder;
    const auto result = sweep(c.words + Words{"--csv=a.csv"}, folder.path());
    EXPECT_EQ(result.exit_code, 2) << c.parts[0] << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(count(result.err, "\n"), 1U) << result.err;
    for (const std::string& part : c.parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << ": " << result.err;
    EXPECT_TRUE(list_folder(folder.path()).empty()) << result.err;
  }
}

}  // namespace
}  // namespace tokamak
