// Products through cuBLASLt against sums in double. Skips where no GPU is visible.
#include "tokamak/gpu/gemm/gemm.h"

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/random.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/gemm_tuner.h"

namespace tokamak::gpu {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20U;

Device& device() {
  static Device only(0);
  return only;
}

class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes) {
    void* data = nullptr;
    TOK_CUDA(cudaMalloc(&data, bytes));
    data_ = static_cast<std::byte*>(data);
  }

  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  ~DeviceBytes() { cudaFree(data_); }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

std::vector<double> numbers(uint64_t stream, int64_t n) {
  std::vector<double> values(n);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<float>(normal_quantile(to_uniform(random_u32(3, stream, i))));
    values[i] = static_cast<double>(static_cast<float>(BF16(x)));
  }
  return values;
}

template <class T>
void upload_as(const DeviceBytes& to, const std::vector<double>& values) {
  std::vector<T> packed;
  for (const double x : values) packed.push_back(T(static_cast<float>(x)));
  device().upload(to.data(), reinterpret_cast<const std::byte*>(packed.data()),
                  static_cast<int64_t>(packed.size() * sizeof(T)));
}

void upload(const DeviceBytes& to, DType dtype, const std::vector<double>& values) {
  dtype == DType::kBF16 ? upload_as<BF16>(to, values) : upload_as<float>(to, values);
}

template <class T>
std::vector<double> download_as(const DeviceBytes& from, int64_t n) {
  std::vector<T> packed(n);
  device().download(reinterpret_cast<std::byte*>(packed.data()), from.data(),
                    n * static_cast<int64_t>(sizeof(T)));
  std::vector<double> values;
  for (const T x : packed) values.push_back(static_cast<double>(static_cast<float>(x)));
  return values;
}

std::vector<double> download(const DeviceBytes& from, DType dtype, int64_t n) {
  return dtype == DType::kBF16 ? download_as<BF16>(from, n) : download_as<float>(from, n);
}

struct Operands {
  std::vector<double> a, b, bias, c;
};

Operands operands_of(const GemmShape& s) {
  return {.a = numbers(1, s.m * s.k),
          .b = numbers(2, s.k * s.n),
          .bias = numbers(3, s.n),
          .c = numbers(4, s.m * s.n)};
}

std::vector<double> product_on_host(const GemmShape& s, const Operands& x, bool accumulate) {
  std::vector<double> c(x.c.size());
  const auto at = [](const std::vector<double>& v, int64_t i) { return v[i]; };
  for (int64_t m = 0; m < s.m; ++m) {
    for (int64_t n = 0; n < s.n; ++n) {
      double sum = accumulate ? at(x.c, m * s.n + n) : 0.0;
      if (s.bias) sum += at(x.bias, n);
      for (int64_t k = 0; k < s.k; ++k)
        sum += at(x.a, s.transpose_a ? k * s.m + m : m * s.k + k) *
               at(x.b, s.transpose_b ? n * s.k + k : k * s.n + n);
      c[m * s.n + n] = sum;
    }
  }
  return c;
}

std::vector<double> product_on_device(const Gemm& gemm, const GemmShape& s, const Operands& x,
                                      bool accumulate) {
  const DeviceBytes a(s.m * s.k * size_of(s.in));
  const DeviceBytes b(s.k * s.n * size_of(s.in));
  const DeviceBytes bias(s.n * size_of(s.in));
  const DeviceBytes c(s.m * s.n * size_of(s.out));
  const DeviceBytes workspace(kWorkspace);
  upload(a, s.in, x.a);
  upload(b, s.in, x.b);
  upload(bias, s.in, x.bias);
  upload(c, s.out, x.c);
  gemm.run(a.data(), b.data(), s.bias ? bias.data() : nullptr, c.data(), accumulate,
           workspace.data(), device().stream(0));
  return download(c, s.out, s.m * s.n);
}

double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

std::string to_hex(const std::array<uint64_t, 8>& words) {
  std::string text;
  for (const uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

// fp32 in, bf16 in, bf16 in with an fp32 result; all layouts, with and without bias.
std::vector<GemmShape> shapes() {
  std::vector<GemmShape> all;
  for (const auto& [in, out] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
        std::pair{DType::kBF16, DType::kF32}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool bias : {false, true}) {
          if (bias && in != out) continue;
          all.push_back({.m = 136,
                         .n = 72,
                         .k = 200,
                         .transpose_a = transpose_a,
                         .transpose_b = transpose_b,
                         .in = in,
                         .out = out,
                         .bias = bias,
                         .workspace_bytes = kWorkspace});
        }
      }
    }
  }
  return all;
}

TEST(GpuGemm, equals_sums_in_double) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  for (const GemmShape& shape : shapes()) {
    const Operands x = operands_of(shape);
    const Gemm gemm(shape, device());
    for (const bool accumulate : {false, true}) {
      const double bound = shape.out == DType::kF32 ? 2e-6 : 4e-3;
      EXPECT_LT(relative_error(product_on_device(gemm, shape, x, accumulate),
                               product_on_host(shape, x, accumulate)),
                bound)
          << to_string(shape) << (accumulate ? ", adds" : "");
    }
  }
}

TEST(GpuGemm, same_cache_same_algorithm) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokamak_gemm_test";
  std::filesystem::remove_all(folder);
  const GemmShape shape{.m = 512,
                        .n = 768,
                        .k = 2048,
                        .transpose_a = true,
                        .in = DType::kBF16,
                        .out = DType::kF32,
                        .workspace_bytes = kWorkspace};
  const GemmProblem problem(shape);
  const auto choose = [&](bool is_on) {
    GemmTuner tuner(device(), {.is_on = is_on, .file = folder / "gemm.json"});
    return std::bit_cast<std::array<uint64_t, 8>>(tuner.choose(shape, problem));
  };
  const auto untimed = choose(false);
  EXPECT_FALSE(path_exists(folder / "gemm.json"));
  EXPECT_EQ(choose(false), untimed);
  const auto timed = choose(true);
  EXPECT_TRUE(path_exists(folder / "gemm.json"));
  EXPECT_EQ(choose(true), timed);
  // What the file holds is taken even where another is faster.
  std::string text = read_file(folder / "gemm.json");
  const size_t at = text.find(to_hex(timed));
  ASSERT_NE(at, std::string::npos);
  write_file_atomic(folder / "gemm.json", text.replace(at, to_hex(timed).size(), to_hex(untimed)));
  EXPECT_EQ(choose(true), untimed);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tokamak::gpu
