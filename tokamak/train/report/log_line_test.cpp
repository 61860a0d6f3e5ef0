#include "tokamak/train/report/log_line.h"

#include <cstdlib>
#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "tokamak/run/flops.h"

namespace tokamak {
namespace {

StepMetrics gpu_step() {
  return {.step = 1,
          .loss = 8.0490971,
          .grad_norm = 1.41421,
          .tps = 5761.5,
          .tflops = 1333.684,
          .mfu = 33.7412,
          .memory_gib = 5.126,
          .memory_percent = 6.478};
}

TEST(LogLine, IsTorchtitansToTheByte) {
  EXPECT_EQ(step_line(gpu_step(), LogColor::kPlain),
            "step:  1  loss:  8.04910  grad_norm:  1.4142  memory:  5.13GiB(6.48%)  tps: 5,762  "
            "tflops: 1,333.68  mfu: 33.74%");
  EXPECT_EQ(step_line(gpu_step(), LogColor::kAnsi),
            "\033[31mstep:  1  \033[32mloss:  8.04910  \033[38;2;180;60;0mgrad_norm:  1.4142  "
            "\033[38;2;54;234;195mmemory:  5.13GiB(6.48%)  \033[34mtps: 5,762  \033[36mtflops: "
            "1,333.68  \033[35mmfu: 33.74%\033[39m");
}

TEST(LogLine, AddsOurFieldsAfterMfu) {
  StepMetrics m = gpu_step();
  m.step = 12345;
  m.mfu.reset();
  m.seconds = {.data = 0.0012, .exposed_comm = 0.25};
  EXPECT_EQ(step_line(m, LogColor::kPlain),
            "step: 12345  loss:  8.04910  grad_norm:  1.4142  memory:  5.13GiB(6.48%)  tps: 5,762  "
            "tflops: 1,333.68  mfu: N/A  data: 0.001s  exposed_comm: 0.250s");
}

TEST(LogLine, LeavesOutSecondsThatCostNothing) {
  StepMetrics m = gpu_step();
  m.step_time_s = 1.0;
  m.seconds = {.data = 0.0012, .exposed_comm = 0.25};
  const std::string line = step_line(m, LogColor::kPlain);
  EXPECT_EQ(line.find("data:"), std::string::npos) << line;
  EXPECT_NE(line.find("mfu: 33.74%  exposed_comm: 0.250s"), std::string::npos) << line;
  m.step_time_s = 0.001;
  m.seconds = {.data = 0.0004, .exposed_comm = 0.0};
  EXPECT_TRUE(step_line(m, LogColor::kPlain).ends_with("mfu: 33.74%"));
  m.seconds.data = 0.0012;
  EXPECT_TRUE(step_line(m, LogColor::kPlain).ends_with("mfu: 33.74%  data: 0.001s"));
}

TEST(LogLine, FitsTheTerminal) {
  StepMetrics m = gpu_step();
  m.seconds = {.data = 0.0012, .exposed_comm = 0.25};
  const std::string whole = step_line(m, LogColor::kPlain);
  for (int columns = 40; columns < 160; ++columns) {
    const std::string line = step_line(m, LogColor::kPlain, columns);
    EXPECT_LE(line.size(), static_cast<size_t>(columns));
    EXPECT_EQ(line.find("step:  1  loss:  8.04910"), 0U) << line;
  }
  EXPECT_EQ(step_line(m, LogColor::kPlain, static_cast<int>(whole.size())), whole);
  EXPECT_EQ(
      step_line(m, LogColor::kPlain, 100),
      "step:  1  loss:  8.04910  grad_norm:  1.4142  memory:  5.13GiB  tps: 5,762  mfu: 33.74%");
  EXPECT_EQ(step_line(m, LogColor::kPlain, 60),
            "step:  1  loss:  8.04910  grad_norm:  1.4142  mfu: 33.74%");
  m.mfu.reset();
  EXPECT_EQ(step_line(m, LogColor::kPlain, 60),
            "step:  1  loss:  8.04910  grad_norm:  1.4142  tps: 5,762");
  const ValidationMetrics v{
      .step = 20, .loss = 4.56789, .memory_gib = 12.0, .memory_percent = 50.0};
  EXPECT_EQ(validation_line(v, LogColor::kPlain, 60),
            "validate step: 20  loss:  4.5679  memory: 12.00GiB  tps: N/A");
}

TEST(LogLine, ShowsWhatIsUnknown) {
  EXPECT_EQ(step_line({.step = 7, .loss = 10.5}, LogColor::kPlain),
            "step:  7  loss: 10.50000  grad_norm:  0.0000  memory: N/A  tps: N/A  tflops: N/A  "
            "mfu: N/A");
}

TEST(LogLine, RoundsAndGroupsAsPythonDoes) {
  const auto tps_field = [](double tps) {
    const std::string line = step_line({.step = 1, .tps = tps}, LogColor::kPlain);
    const size_t at = line.find("tps: ");
    return line.substr(at, line.find("  ", at) - at);
  };
  EXPECT_EQ(tps_field(0.5), "tps: 0");
  EXPECT_EQ(tps_field(999.4), "tps: 999");
  EXPECT_EQ(tps_field(999.6), "tps: 1,000");
  EXPECT_EQ(tps_field(1234567.0), "tps: 1,234,567");
}

TEST(LogLine, ValidationLine) {
  const ValidationMetrics m{
      .step = 20, .loss = 4.56789, .tps = 12345.0, .memory_gib = 12.0, .memory_percent = 50.0};
  EXPECT_EQ(validation_line(m, LogColor::kPlain),
            "validate step: 20  loss:  4.5679  memory: 12.00GiB(50.00%)  tps: 12,345");
  EXPECT_EQ(validation_line(m, LogColor::kAnsi),
            "\033[33mvalidate step: 20  \033[32mloss:  4.5679  \033[38;2;54;234;195mmemory: "
            "12.00GiB(50.00%)  \033[34mtps: 12,345\033[39m");
}

TEST(LogLine, Prefix) {
  std::tm local{};
  local.tm_year = 125;
  local.tm_mon = 1;
  local.tm_mday = 3;
  local.tm_hour = 4;
  local.tm_min = 5;
  local.tm_sec = 6;
  local.tm_isdst = -1;
  const auto time = std::chrono::system_clock::from_time_t(std::mktime(&local)) +
                    std::chrono::milliseconds(7) + std::chrono::microseconds(999);
  EXPECT_EQ(log_prefix(time, "INFO", LogFormat::kTorchtitan),
            "[titan] 2025-02-03 04:05:06,007 - root - INFO - ");
  EXPECT_EQ(log_prefix(time, "WARNING", LogFormat::kTorchtitan, LogColor::kAnsi),
            "[titan] 2025-02-03 04:05:06,007 - root - WARNING - ");
  EXPECT_EQ(log_prefix(time, "INFO", LogFormat::kPlain), "2025-02-03 04:05:06 ");
  EXPECT_EQ(log_prefix(time, "WARNING", LogFormat::kPlain), "2025-02-03 04:05:06 WARNING: ");
  EXPECT_EQ(log_prefix(time, "WARNING", LogFormat::kPlain, LogColor::kAnsi),
            "\033[2m2025-02-03 04:05:06\033[22m \033[33mWARNING: \033[39m");
}

TEST(LogLine, ProgressFitsTheTerminal) {
  const StepProgress p{.step = 120,
                       .num_steps = 240,
                       .loss = 4.8291,
                       .tps = 4451.2,
                       .seconds_left = 72.4,
                       .memory_gib = 0.3};
  const std::string whole = "step 120/240  50%  loss 4.8291  4,451 tok/s  1m12s left  0.30 GiB";
  EXPECT_EQ(progress_line(p, LogColor::kPlain, 80), whole);
  EXPECT_EQ(progress_line(p, LogColor::kPlain, static_cast<int>(whole.size())), whole);
  EXPECT_EQ(progress_line(p, LogColor::kPlain, static_cast<int>(whole.size()) - 1),
            "step 120/240  50%  loss 4.8291  4,451 tok/s  1m12s left");
  EXPECT_EQ(progress_line(p, LogColor::kPlain, 5), "");
  EXPECT_EQ(progress_line({.step = 1, .num_steps = 1000, .loss = 8.0}, LogColor::kPlain, 80),
            "step 1/1000  0%  loss 8.0000  N/A tok/s  0.00 GiB");
  const auto left = [&](double seconds) {
    StepProgress at = p;
    at.seconds_left = seconds;
    const std::string line = progress_line(at, LogColor::kPlain, 80);
    const size_t begin = line.find("tok/s") + 7;
    return line.substr(begin, line.find(" left") - begin);
  };
  EXPECT_EQ(left(0.0), "0s");
  EXPECT_EQ(left(59.6), "1m00s");
  EXPECT_EQ(left(3725.0), "1h02m");
  EXPECT_EQ(left(100000.0), "1d03h");
}

TEST(Flops, EqualsTorchtitansCount) {
  struct Row {
    FlopsShape shape;
    double flops;
    double attention_share;
  };

  const auto llama = [](int64_t parameters, int64_t vocab, int64_t dim, int64_t layers,
                        int64_t heads, int64_t seq_len) {
    return FlopsShape{.parameters = parameters,
                      .lookup_parameters = vocab * dim,
                      .layers = layers,
                      .heads = heads,
                      .head_dim_qk = dim / heads,
                      .head_dim_v = dim / heads,
                      .seq_len = seq_len};
  };
  const Row rows[] = {
      {llama(6'163'712, 2048, 256, 6, 16, 2048), 7.1585e7, 0.527},
      {llama(8'030'261'248, 128'256, 4096, 32, 32, 8192), 5.7914e10, 0.222},
      {llama(70'553'706'496, 128'256, 8192, 80, 64, 8192), 4.8144e11, 0.134},
      {llama(405'853'388'800, 128'256, 16384, 126, 128, 8192), 2.6254e12, 0.077},
  };
  for (const auto& row : rows) {
    const double full = flops_per_token(row.shape);
    EXPECT_NEAR(full / row.flops, 1.0, 5e-5);
    FlopsShape no_attention = row.shape;
    no_attention.layers = 0;
    EXPECT_NEAR(1.0 - flops_per_token(no_attention) / full, row.attention_share, 5e-4);
    const double seq_len = static_cast<double>(row.shape.seq_len);
    const double attention = full - flops_per_token(no_attention);
    EXPECT_NEAR(causal_flops_per_token(row.shape), full - attention * (0.5 - 0.5 / seq_len),
                1e-9 * full);
  }
}

}  // namespace
}  // namespace tokamak
