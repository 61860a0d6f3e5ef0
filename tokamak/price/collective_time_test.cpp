#include "tokamak/price/collective_time.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

constexpr Collective kAll[] = {Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllReduce, Collective::kAllToAll,
                               Collective::kBroadcast, Collective::kSendRecv};

double all_reduce(const Machine& m, double bytes, int size, int stride = 1) {
  return collective_seconds(Collective::kAllReduce, bytes, strided_layout(size, stride, m), m);
}

// Sizes double from `first` on.
double mean_error(const Machine& m, int size, double first_bytes,
                  const std::vector<double>& measured_s) {
  double sum = 0.0;
  double bytes = first_bytes;
  for (const double measured : measured_s) {
    sum += std::abs(all_reduce(m, bytes, size) / measured - 1.0);
    bytes *= 2.0;
  }
  return sum / static_cast<double>(measured_s.size());
}

// Bus bandwidths in GB/s, as nccl-tests count them, to seconds.
std::vector<double> seconds_of(int size, double bytes, const std::vector<double>& bus) {
  std::vector<double> seconds;
  for (const double rate : bus) {
    seconds.push_back(2.0 * (size - 1) / size * bytes / (1e9 * rate));
    bytes *= 2.0;
  }
  return seconds;
}

// All four: stas00/ml-engineering 744d01e network/README.md.
TEST(CollectiveTime, MeetsPublishedSweeps) {
  const std::vector<double> a100_us = {43.83,  46.80,  51.76, 61.38, 80.40, 101.9,  101.4,
                                       101.5,  133.5,  276.6, 424.0, 684.6, 1327.6, 2420.6,
                                       4218.4, 8203.9, 16240, 32136, 64074, 127997};
  std::vector<double> a100;
  for (const double us : a100_us) a100.push_back(1e-6 * us);
  const std::vector<double> h200 = {1.44,   2.93,   5.73,   11.74,  23.94,  39.93,  64.53,
                                    107.16, 155.53, 219.89, 275.84, 346.51, 401.93, 436.15,
                                    450.29, 463.58, 469.17, 473.10, 477.45, 482.26};
  const std::vector<double> b200 = {1.20,   2.17,   4.86,   9.54,   18.71,  36.06,  63.09,
                                    76.48,  126.49, 254.96, 325.97, 400.60, 568.38, 646.11,
                                    688.99, 723.34, 734.97, 740.64, 839.07, 845.67};
  // Smaller sizes are printed with one or two digits.
  const std::vector<double> b200_of_4 = {1.33,   2.84,   5.37,   10.38,  18.90,  35.12,
                                         64.43,  91.19,  156.74, 197.94, 229.09, 326.90,
                                         361.99, 372.42, 377.34, 380.39, 381.80};
  constexpr double k32Kib = 32768.0;
  const double errors[] = {mean_error(load_machine("a100-80"), 8, k32Kib, a100),
                           mean_error(load_machine("h200"), 8, k32Kib, seconds_of(8, k32Kib, h200)),
                           mean_error(load_machine("b200"), 8, k32Kib, seconds_of(8, k32Kib, b200)),
                           mean_error(load_machine("b200+efa-400"), 32, 8 * k32Kib,
                                      seconds_of(32, 8 * k32Kib, b200_of_4))};
  for (const double error : errors) {
    RecordProperty("mean_error", std::to_string(error));
    EXPECT_LE(error, 0.08);
  }
}

// Points that no constant was fitted on.
TEST(CollectiveTime, MeetsOtherPublishedPoints) {
  const Machine h200 = load_machine("h200");
  const double k16Gib = std::exp2(34);
  const auto bus = [&](Collective kind, const Machine& m, double bytes, int size) {
    const double passes = kind == Collective::kAllReduce ? 2.0 : 1.0;
    return 1e-9 * passes * (size - 1) / size * bytes /
           collective_seconds(kind, bytes, strided_layout(size, 1, m), m);
  };
  EXPECT_NEAR(bus(Collective::kAllGather, h200, k16Gib, 8), 361.4, 0.05 * 361.4);
  EXPECT_NEAR(bus(Collective::kReduceScatter, h200, k16Gib, 8), 362.9, 0.05 * 362.9);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, k16Gib / 2, 4), 363.3, 0.05 * 363.3);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, k16Gib / 2, 5), 414.2, 0.1 * 414.2);
  EXPECT_NEAR(bus(Collective::kAllReduce, h200, k16Gib / 2, 6), 435.6, 0.1 * 435.6);
  const Machine b200 = load_machine("b200");
  EXPECT_NEAR(bus(Collective::kAllReduce, b200, k16Gib / 2, 4), 673.2, 0.05 * 673.2);
  EXPECT_NEAR(bus(Collective::kAllReduce, b200, k16Gib / 2, 6), 778.2, 0.1 * 778.2);
  // 4 nodes of 8 H200 over EFA.
  EXPECT_NEAR(bus(Collective::kAllReduce, load_machine("h200+efa-400"), k16Gib / 4, 32), 364.9,
              0.08 * 364.9);
  // A mesh: two members see one link of seven.
  const Machine mi300x = load_machine("mi300x");
  EXPECT_NEAR(bus(Collective::kAllReduce, mi300x, k16Gib / 4, 8), 312.9, 0.05 * 312.9);
  EXPECT_NEAR(bus(Collective::kAllReduce, mi300x, k16Gib / 4, 2), 47.7, 0.1 * 47.7);
}

}  // namespace
}  // namespace tokamak::price
