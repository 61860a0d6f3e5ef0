#include "tokamak/train/report/run_page.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/test_page.h"
#include "tokamak/train/report/metrics_file.h"
#include "tokamak/train/report/run_events.h"
#include "tokamak/train/report/run_history.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

std::string line_of(int64_t step, double loss = 2.0) {
  return to_json_line(StepMetrics{.step = step,
                                  .loss = loss,
                                  .grad_norm = 1.0,
                                  .lr = 1e-3,
                                  .tokens_seen = 100 * step,
                                  .tps = 5000.0,
                                  .memory_gib = 1.5,
                                  .step_time_s = 0.25,
                                  .seconds = {.forward = 0.1, .backward = 0.15}});
}

class RunPage : public ::testing::Test {
 public:
  RunPage() { fs::create_directories(folder_); }

  ~RunPage() override { fs::remove_all(folder_); }

 protected:
  fs::path write(const std::string& name, const std::string& text) {
    make_folders((folder_ / name).parent_path());
    FileWriter(folder_ / name).write(text);
    return (folder_ / name).parent_path();
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("tokamak_page_{}", getpid());
};

TEST_F(RunPage, FindsRunsInAFolderAndSaysWhereThereAreNone) {
  const fs::path run = write("b/metrics.jsonl", line_of(1));
  write("a/metrics.jsonl", line_of(1));
  write("c/other.txt", "");
  EXPECT_EQ(find_runs(run), std::vector{run});
  EXPECT_EQ(find_runs(folder_), (std::vector{folder_ / "a", folder_ / "b"}));
  EXPECT_THROW(find_runs(folder_ / "c"), Error);
  EXPECT_THROW(find_runs(folder_ / "absent"), Error);
  EXPECT_THROW(find_runs(folder_ / "c/other.txt"), Error);
}

TEST_F(RunPage, LeavesOutWhatIsTornOrForeign) {
  const fs::path run =
      write("r/metrics.jsonl", "not json\n" + line_of(1) + "{\"step\": \"x\"}\n[]\n" + line_of(2) +
                                   line_of(3).substr(0, 40));
  const RunHistory history = read_run(run);
  ASSERT_EQ(history.steps.size(), 2U);
  EXPECT_EQ(history.steps[1].step, 2);
  EXPECT_EQ(history.steps[1][Metric::kTps], 5000.0);
  ASSERT_EQ(history.notes.size(), 2U);
  EXPECT_EQ(history.notes[0], "3 lines of metrics.jsonl could not be read");
  EXPECT_THROW(read_run(write("e/metrics.jsonl", "")), Error);
  EXPECT_THROW(read_run(write("f/metrics.jsonl", "{\"step\": 1")), Error);
}

TEST_F(RunPage, StepsOfSeveralRunsInOneFileAreSaid) {
  const RunHistory history =
      read_run(write("r/metrics.jsonl", line_of(1) + line_of(20) + line_of(10) + line_of(20, 3.0)));
  ASSERT_EQ(history.steps.size(), 3U);
  EXPECT_EQ(history.steps[2][Metric::kLoss], 3.0);
  ASSERT_EQ(history.notes.size(), 1U);
  EXPECT_NE(history.notes[0].find("go back 1 time "), std::string::npos);
}

TEST_F(RunPage, EventsOfAResumedRun) {
  const fs::path run = write("r/metrics.jsonl", line_of(1));
  {
    RunEvents events;
    events.add("INFO", "Model llama3 1B size: 5 total parameters");
    events.open(run / "events.jsonl", 0);
    events.add("INFO", "Training starts at step 1");
    events.set_step(20);
    events.add("INFO", "Saved the checkpoint /x/step-20: 1 GB of rank 0 in 1 s");
    events.add("WARNING",
               "step 21: loss 9 where the median of recent steps is 2: its update was left out");
  }
  RunEvents events;
  events.add("INFO", "The run has another length than before: training.steps 20 (now 30)");
  events.open(run / "events.jsonl", 20);
  events.add("INFO", "Training starts at step 21");
  events.add("WARNING", "bytes that are no text: \xff");
  const auto history = read_run(run);
  std::vector<std::string_view> kinds;
  for (const RunEvent& event : history.events) kinds.push_back(name_of(event.kind));
  EXPECT_EQ(kinds,
            (std::vector<std::string_view>{"start", "save", "bad step", "restart", "warning"}));
  EXPECT_EQ(history.events[1].step, 20);
  EXPECT_EQ(history.events[2].step, 21);
  // What was said before the file was there belongs to the step from which the run went on.
  EXPECT_NE(read_file(run / "events.jsonl").find(R"("step":20,"level":"INFO","text":"The run has)"),
            std::string::npos);
  EXPECT_EQ(history.events[0].time.size(), std::string("2026-01-31T12:00:00Z").size());
  // A run that starts anew keeps the old file aside.
  RunEvents().open(run / "events.jsonl", 0);
  EXPECT_TRUE(path_exists(run / "events.jsonl.previous"));
  EXPECT_TRUE(read_run(run).events.empty());
}

TEST_F(RunPage, ShowsHostileTextAsText) {
  RunHistory run{
      .name = "<script>alert(1)</script>\"'&", .steps = {{.step = 1}}, .job = "</table>"};
  run.events.push_back({.text = "</td><img src=x onerror=alert(2)>\x1b[2J\xff"});
  run.notes.push_back("<b>");
  const std::string page = run_page(run.name, std::span(&run, 1));
  for (const char* bad : {"<script>alert", "<img", "<b>", "\x1b", "\xff"})
    EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  const Json data = page_data(page);
  EXPECT_EQ(data.at("title"), run.name);
  EXPECT_EQ(data.at("blocks")[0].at("table").at("rows")[0].back(), "</table>");
}

TEST_F(RunPage, IsSmallHoweverLongTheRunsAre) {
  std::vector<RunHistory> runs(kMostRunsOfPage);
  for (RunHistory& run : runs) {
    run.name = std::string(300, '"');
    run.notes.assign(3, std::string(1000, '&'));
    for (int64_t step = 1; step <= 20'000; ++step) {
      LoggedStep logged{.step = step};
      for (size_t i = 0; i < kNumMetrics; ++i)
        logged.values[i] =
            1.0 + static_cast<double>((step * 7919 + static_cast<int64_t>(i)) % 1000);
      run.steps.push_back(logged);
      run.validation.emplace_back(step, 1.0);
      run.events.push_back(
          {.kind = RunEventKind::kSave, .step = step, .text = std::string(5000, '"')});
    }
  }
  for (const size_t count : {size_t{1}, size_t{2}, kMostRunsOfPage})
    EXPECT_LT(run_page("long", std::span(runs).first(count)).size(), 1'200'000U) << count;
}

TEST_F(RunPage, SaysWhatIsNotKnown) {
  const RunHistory run = read_run(
      write("r/metrics.jsonl", "{\"step\": 1}\n{\"step\": 2, \"loss\": null, \"lr\": \"x\"}\n"));
  const std::string page = run_page("empty", std::span(&run, 1));
  for (const Json& block : page_data(page).at("blocks")) {
    if (!block.contains("charts")) continue;
    EXPECT_EQ(block.at("charts").size(), 8U);
    for (const Json& chart : block.at("charts")) {
      EXPECT_EQ(chart.at("none"), "not known of these runs");
      for (const Json& series : chart.at("series")) {
        for (const Json& point : series.at("points")) EXPECT_TRUE(point.at(1).is_null()) << chart;
      }
    }
  }
}

}  // namespace
}  // namespace tokamak
