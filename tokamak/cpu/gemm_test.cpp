#include "tokamak/cpu/gemm.h"

#include <cmath>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/cpu/parallel.h"

namespace tokamak::cpu {
namespace {

constexpr float kBefore = 1.0F;  // in C, where a product adds

struct Problem {
  GemmShape shape;
  std::vector<BF16> a, b, bias;

  explicit Problem(const GemmShape& s)
      : shape(s),
        a(draw(1, (s.transpose_a ? s.k : s.m) * s.row_of_a())),
        b(draw(2, s.k * s.n)),
        bias(draw(3, s.n)) {}

  static std::vector<BF16> draw(uint64_t stream, int64_t n) {
    std::vector<BF16> x;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = random_u32(7, stream, static_cast<uint64_t>(i));
      x.emplace_back(static_cast<float>(bits) * 0x1p-31F - 1.0F);
    }
    return x;
  }

  double exact(int64_t i, int64_t j, bool accumulate) const {
    double sum = accumulate ? static_cast<double>(kBefore) : 0.0;
    if (shape.bias) sum += static_cast<double>(static_cast<float>(bias[j]));
    for (int64_t k = 0; k < shape.k; ++k) {
      const BF16 x = a[shape.transpose_a ? k * shape.row_of_a() + i : i * shape.row_of_a() + k];
      const BF16 y = b[shape.transpose_b ? j * shape.k + k : k * shape.n + j];
      sum +=
          static_cast<double>(static_cast<float>(x)) * static_cast<double>(static_cast<float>(y));
    }
    return sum;
  }

  template <class Out>
  std::vector<Out> run(bool accumulate) const {
    std::vector<Out> c(shape.m * shape.n, Out{kBefore});
    Gemm(shape).run(a.data(), b.data(), shape.bias ? bias.data() : nullptr, c.data(), accumulate);
    return c;
  }

  // Against double, at the corners and at every `stride`-th element.
  template <class Out>
  void check(bool accumulate, double bound) const {
    constexpr int64_t kStride = 131;
    const std::vector<Out> c = run<Out>(accumulate);
    for (int64_t at = 0; at < shape.m * shape.n;
         at += at + kStride < shape.m * shape.n ? kStride : 1) {
      const double want = exact(at / shape.n, at % shape.n, accumulate);
      const double got = static_cast<double>(static_cast<float>(c[at]));
      ASSERT_NEAR(got, want, bound * (std::sqrt(static_cast<double>(shape.k)) + std::abs(want)))
          << "row " << at / shape.n << ", column " << at % shape.n;
    }
  }
};

// Inner sizes of one piece and of several; blocks that are full and that are cut.
using Sizes = std::tuple<int64_t, int64_t, int64_t>;

class GemmOfBf16 : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (!Gemm::is_available()) GTEST_SKIP() << "built without oneDNN";
  }
};

TEST_P(GemmOfBf16, equals_sums_in_double) {
  const auto [m, n, k] = GetParam();
  for (int bits = 0; bits < 32; ++bits) {
    const bool accumulate = (bits & 8) != 0;
    const bool is_float = (bits & 4) != 0;
    const Problem problem({.m = m,
                           .n = n,
                           .k = k,
                           .transpose_a = (bits & 1) != 0,
                           .transpose_b = (bits & 2) != 0,
                           .in = DType::kBF16,
                           .out = is_float ? DType::kF32 : DType::kBF16,
                           .bias = !is_float && !accumulate,
                           .a_stride = (bits & 16) != 0 ? std::max(m, k) + 8 : 0});
    SCOPED_TRACE(fmt::format("rows apart, sum, type and layouts {:05b}", bits));
    if (is_float) {
      problem.check<float>(accumulate, 1e-6);
    } else {
      problem.check<BF16>(accumulate, 4e-3);
    }
  }
}

TEST_P(GemmOfBf16, has_the_same_bits_with_one_thread) {
#ifdef _OPENMP
  const auto [m, n, k] = GetParam();
  const Problem problem({.m = m, .n = n, .k = k, .transpose_a = true, .in = DType::kBF16});
  const int threads = num_threads();
  omp_set_num_threads(3);
  const std::vector<float> many = problem.run<float>(true);
  omp_set_num_threads(1);
  const std::vector<float> one = problem.run<float>(true);
  omp_set_num_threads(threads);
  EXPECT_EQ(one, many);
#else
  GTEST_SKIP() << "built without OpenMP";
#endif
}

INSTANTIATE_TEST_SUITE_P(sizes, GemmOfBf16,
                         testing::Values(Sizes{64, 64, 64}, Sizes{100, 77, 130},
                                         Sizes{256, 96, 320}, Sizes{333, 65, 1055},
                                         Sizes{2112, 80, 96}, Sizes{520, 70, 2100},
                                         Sizes{64, 2100, 2500}, Sizes{8, 300, 70}));

}  // namespace
}  // namespace tokamak::cpu
