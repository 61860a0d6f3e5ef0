// How near prices come to published measurements (docs/pricing-accuracy.md): the bounds that hold.
// The folder of measurements lies beside a checkout, or does not.
#include <filesystem>
#include <functional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/train/row_price.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

fs::path folder() {
  return fs::path(TOK_SOURCE_DIR) / ".." / "shared" / "measured";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class RowAccuracy : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(folder())) GTEST_SKIP() << folder() << " is absent";
  }

  static std::vector<MeasuredRow> rows_of(const std::string& file,
                                          const std::function<bool(const MeasuredRow&)>& wanted) {
    std::vector<MeasuredRow> rows;
    for (const MeasuredRow& row : read_measured_rows(folder() / file)) {
      if (row.skipped.empty() && wanted(row)) rows.push_back(row);
    }
    return rows;
  }

  static ErrorSummary errors_of(const std::vector<MeasuredRow>& rows) {
    std::vector<double> errors;
    std::string text;
    for (const PricedRow& p : price_rows(rows, {})) {
      EXPECT_EQ(p.skipped, "") << p.row.line;
      errors.push_back(p.error());
      text += fmt::format("{}: {:+.1f} %\n", p.row.line, 100.0 * p.error());
    }
    const ErrorSummary s = summarize(errors);
    fmt::print("{}{} rows: mean {:.1f} %, median {:.1f} %, p90 {:.1f} %, worst {:.1f} %\n", text,
               s.count, 100 * s.mean, 100 * s.median, 100 * s.p90, 100 * s.worst);
    return s;
  }

  static MeasuredRow line(int number) {
    for (const MeasuredRow& row : read_measured_rows(folder() / "training_runs.csv")) {
      if (row.line == number) return row;
    }
    return {};
  }

  static double seconds_of(const MeasuredRow& row) {
    const PricedRow priced = price_rows({row}, {})[0];
    EXPECT_EQ(priced.skipped, "") << row.line;
    return priced.step.seconds;
  }
};

TEST_F(RowAccuracy, TwelveRowsOfNemo405B) {
  const ErrorSummary s = errors_of(rows_of(
      "training_runs.csv", [](const MeasuredRow& r) { return contains(r.source, "seed 004"); }));
  EXPECT_EQ(s.count, 12);
  EXPECT_LE(s.mean, 0.05);
  EXPECT_LE(s.worst, 0.10);
}

TEST_F(RowAccuracy, TorchtitanOnGb200) {
  const ErrorSummary s = errors_of(rows_of(
      "training_runs.csv", [](const MeasuredRow& r) { return contains(r.source, "seed 002"); }));
  EXPECT_EQ(s.count, 3);
  EXPECT_LE(s.worst, 0.08);
}

TEST_F(RowAccuracy, RowsThatDoNotCalibrate) {
  const ErrorSummary s = errors_of(
      rows_of("training_runs.csv", [](const MeasuredRow& r) { return !may_calibrate(r); }));
  EXPECT_EQ(s.count, 145);
  EXPECT_LE(s.median, 0.04);
  EXPECT_LE(s.p90, 0.12);
}

}  // namespace
}  // namespace tokamak
