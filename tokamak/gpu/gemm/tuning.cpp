#include "tokamak/gpu/gemm/tuning.h"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/random.h"
#include "tokamak/gpu/check.h"
#include "tokamak/ops/float8/float8.h"

namespace tokamak::gpu {
namespace {

constexpr size_t kNumRandom = 65537;  // a prime: rows of a matrix differ

template <class T>
std::vector<T> random_values(float deviation = 1.0F) {
  std::vector<T> values(kNumRandom);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = T(deviation * static_cast<float>(normal_quantile(to_uniform(random_u32(0, 0, i)))));
  return values;
}

// Encodes normal numbers as scales would, the greatest of which is some six deviations.
template <class T>
std::vector<T> random_quantized() {
  return random_values<T>(T::kLargest / 6.0F);
}

}  // namespace

TunerOptions read_tuner_options(std::string_view name) {
  const char* tune = std::getenv("TOKAMAK_TUNE");
  const std::string_view how = tune == nullptr ? "" : tune;
  return {.is_on = how != "0",
          .lists = how == "list" || how == "all",
          .tries_all = how == "all",
          .file = cache_folder() / name};
}

std::string describe_machine(const Device& device, std::string_view library) {
  int driver = 0;
  TOK_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format("{}, {} multiprocessors, {}, driver {}", device.name(),
                     device.num_multiprocessors(), library, driver);
}

void fill_random(std::byte* memory, int64_t bytes, DType dtype, cudaStream_t stream) {
  const auto upload = [&](const auto& values) {
    const auto n = std::min(static_cast<size_t>(bytes), std::span(values).size_bytes());
    TOK_CUDA(cudaMemcpyAsync(memory, values.data(), n, cudaMemcpyHostToDevice, stream));
    TOK_CUDA(cudaStreamSynchronize(stream));
    return static_cast<int64_t>(n);
  };
  int64_t done = dtype == DType::kE4M3   ? upload(random_quantized<E4M3>())
                 : dtype == DType::kE5M2 ? upload(random_quantized<E5M2>())
                 : dtype == DType::kBF16 ? upload(random_values<BF16>())
                                         : upload(random_values<float>());
  while (done < bytes) {
    const int64_t n = std::min(done, bytes - done);
    TOK_CUDA(cudaMemcpyAsync(memory + done, memory, n, cudaMemcpyDeviceToDevice, stream));
    done += n;
  }
}

double median(std::vector<double> times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace tokamak::gpu
