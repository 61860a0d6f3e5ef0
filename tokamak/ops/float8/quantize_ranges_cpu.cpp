#include <algorithm>
#include <bit>

#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/quantize_ranges.h"
#include "tokamak/ops/float8/values_cpu.h"

namespace tokamak::cpu {
namespace {

// Returns the delayed scale of a site, or 0 if it has none.
float delayed_scale(const Tensor& rows, int64_t site) {
  return rows.as<float>()[site * rows.dim(1)];
}

// Raises maxima[site] to what the site's ranges hold.
template <class T>
void take_maxima(const std::vector<QuantizedRange>& ranges, DType rounds_to, const T* x,
                 float* maxima) {
  for (const QuantizedRange& r : ranges) {
    auto most = std::bit_cast<uint32_t>(maxima[r.site]);
    for (int64_t i = r.begin; i < r.end; ++i)
      most = std::max(most, magnitude_of(rounded(x[i], rounds_to == DType::kBF16)));
    maxima[r.site] = std::bit_cast<float>(most);
  }
}

template <class Format, class T>
void encode(const QuantizeRanges& op, const KernelArgs& a) {
  const T* x = a.in[0].as<T>();
  const float* maxima = a.in[1].as<float>();
  auto* quantized = a.out[0].as<Format>();
  auto* inverse = a.out[1].as<float>();
  const auto scale_of = [&](int64_t site) {
    const float delayed = op.is_delayed ? delayed_scale(a.in[2], site) : 0.0F;
    if (delayed > 0.0F) return delayed;
    return float8_scale(maxima[site], Format::kLargest, op.power_of_two);
  };
  std::fill_n(inverse, a.out[1].numel(), 0.0F);
  for (int64_t site = 0; site < a.in[1].numel(); ++site)
    inverse[QuantizeRanges::kStride * site] = 1.0F / scale_of(site);
  int64_t end = 0;
  for (const QuantizedRange& r : op.ranges) {
    std::fill(quantized + end, quantized + r.begin, Format());
    const float scale = scale_of(r.site);
    const bool to_bf16 = op.rounds_to == DType::kBF16;
    parallel_ranges(r.end - r.begin, 8192, [&](int64_t first, int64_t last, int) {
      for (int64_t i = r.begin + first; i < r.begin + last; ++i)
        quantized[i] = Format(rounded(x[i], to_bf16) * scale);
    });
    end = r.end;
  }
  std::fill(quantized + end, quantized + a.out[0].numel(), Format());
  if (!op.has_amax) return;
  std::fill_n(a.out[2].as<float>(), a.out[2].numel(), 0.0F);
  take_maxima(op.ranges, op.rounds_to, x, a.out[2].as<float>());
}

}  // namespace

Kernel prepare(const AmaxRanges& op, const KernelTypes& types, std::string_view) {
  const bool has_so_far = types.in.size() == (op.is_gated ? 3 : 2);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      float* maxima = a.out[0].as<float>();
      for (int64_t site = 0; site < op.num_sites; ++site)
        maxima[site] = has_so_far ? a.in[1].as<float>()[site] : 0.0F;
      std::vector<QuantizedRange> read;
      for (const QuantizedRange& r : op.ranges) {
        if (!op.is_gated || !(delayed_scale(a.in.back(), r.site) > 0.0F)) read.push_back(r);
      }
      take_maxima(read, op.rounds_to, a.in[0].as<T>(), maxima);
    };
  });
}

Kernel prepare(const QuantizeRanges& op, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [op](const KernelArgs& a) {
      op.format == DType::kE4M3 ? encode<E4M3, T>(op, a) : encode<E5M2, T>(op, a);
    };
  });
}

}  // namespace tokamak::cpu
