#include "tokamak/train/report/metrics_file.h"

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class MetricsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(testing::TempDir()) /
        fmt::format("tokamak_{}_{}", testing::UnitTest::GetInstance()->current_test_info()->name(),
                    ::getpid());
    fs::remove_all(folder_);
  }

  void TearDown() override { fs::remove_all(folder_); }

  fs::path path() const { return folder_ / "metrics.jsonl"; }

  std::string text() const { return read_file(path()); }

  void run_steps(int64_t resumed_step, int64_t last_step) const {
    MetricsFile file(path(), resumed_step);
    for (int64_t step = resumed_step + 1; step <= last_step; ++step) {
      file.append(StepMetrics{.step = step, .loss = 1.0 / static_cast<double>(step)});
    }
  }

  fs::path folder_;
};

TEST(MetricsLine, HoldsEveryField) {
  const StepMetrics m{.step = 3,
                      .loss = 1.5,
                      .grad_norm = 2.0,
                      .lr = 1e-5,
                      .tokens_seen = 6144,
                      .tps = 100.25,
                      .memory_gib = 0.5,
                      .step_time_s = 20.4,
                      .seconds = {.data = 0.25, .forward = 1.0, .checkpoint = 0.0},
                      .saturated_sites = 4.0,
                      .world_size = 2,
                      .job = "47\"11"};
  EXPECT_EQ(to_json_line(m),
            R"({"step": 3, "loss": 1.5, "grad_norm": 2.0, "lr": 1e-05, "tokens_seen": 6144, )"
            R"("tps": 100.25, "tflops": null, "mfu": null, "memory_gib": 0.5, )"
            R"("step_time_s": 20.4, "data_s": 0.25, "forward_s": 1.0, "backward_s": null, )"
            R"("exposed_comm_s": null, "optimizer_s": null, "checkpoint_s": 0.0, )"
            R"("fp8_saturated_sites": 4.0, "failed_saves": 0, "world_size": 2, "job": "47\"11"})"
            "\n");
}

TEST(MetricsLine, NumbersRoundTrip) {
  const double values[] = {8.049097061157227,
                           0.1,
                           1.0 / 3.0,
                           1e-300,
                           123456789012345680.0,
                           5e-324,
                           std::numeric_limits<double>::max(),
                           static_cast<double>(std::nextafter(2.5F, 3.0F))};
  for (const double value : values) {
    const Json line = parse_json(to_json_line(StepMetrics{.step = 1, .loss = value}), "line");
    EXPECT_TRUE(line["loss"].is_number_float()) << value;
    EXPECT_EQ(line["loss"].get<double>(), value);
  }
}

TEST(MetricsLine, WhatJsonCannotSayIsNull) {
  const StepMetrics m{.step = 1, .loss = std::nan(""), .grad_norm = INFINITY};
  const Json line = parse_json(to_json_line(m), "line");
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
}

TEST(MetricsLine, CutDropsLaterTornAndForeignLines) {
  const std::string one = "{\"step\": 1, \"loss\": 2.0}\n";
  const std::string two = "{\"step\": 2, \"loss\": 1.0}\n";
  EXPECT_EQ(cut_to_step(one + two, 1), one);
  EXPECT_EQ(cut_to_step(one + two, 2), one + two);
  EXPECT_EQ(cut_to_step(one + "{\"step\": 2, \"lo", 2), one);
  EXPECT_EQ(cut_to_step(one + "{\"step\": 2, \"lo{\"step\": 2}\n[1]\n{\"step\": \"2\"}\n" + two, 9),
            one + two);
  EXPECT_EQ(cut_to_step("", 5), "");
}

TEST_F(MetricsFileTest, ResumeEqualsTheUninterruptedRun) {
  run_steps(0, 10);
  const std::string whole = text();
  run_steps(6, 10);
  EXPECT_EQ(text(), whole);
  EXPECT_FALSE(fs::exists(path().string() + ".tmp"));
}

TEST_F(MetricsFileTest, ResumeToleratesATornLastLine) {
  run_steps(0, 10);
  const std::string whole = text();
  fs::resize_file(path(), whole.size() - 5);
  run_steps(9, 10);
  EXPECT_EQ(text(), whole);
}

TEST_F(MetricsFileTest, AFreshRunKeepsTheEarlierFile) {
  run_steps(0, 3);
  const std::string earlier = text();
  run_steps(0, 1);
  EXPECT_EQ(text(), to_json_line(StepMetrics{.step = 1, .loss = 1.0}));
  EXPECT_EQ(read_file(path().string() + ".previous"), earlier);
}

TEST_F(MetricsFileTest, ValidationLinesGoThroughTheSameDoor) {
  MetricsFile file(path(), 0);
  file.append(ValidationMetrics{.step = 5, .loss = 3.0, .tps = 2.0});
  EXPECT_EQ(text(),
            "{\"step\": 5, \"loss\": 3.0, \"tps\": 2.0, \"memory_gib\": null, \"time_s\": null, "
            "\"world_size\": 1}\n");
}

TEST_F(MetricsFileTest, AFullDiskLeavesWholeLines) {
  run_steps(0, 2);
  const std::string before = text();
  const auto limited = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{before.size() + 20, before.size() + 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(1);
    try {
      run_steps(2, 3);
    } catch (const SystemError&) {
      std::_Exit(75);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(limited(), testing::ExitedWithCode(75), "");
  EXPECT_EQ(text(), before);
}

TEST_F(MetricsFileTest, AFolderThatCannotBeMadeIsTheUsersError) {
  fs::create_directories(folder_);
  FileWriter(folder_ / "file").write(std::string_view("x"));
  EXPECT_THROW(MetricsFile(folder_ / "file" / "metrics.jsonl", 0), Error);
}

}  // namespace
}  // namespace tokamak
