#include "tokamak/core/normal_quantile.h"
#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/draw.h"

namespace tokamak::gpu {
namespace {

// Each thread draws one element, in about a hundred double operations.
template <class T>
struct Draw {
  RandomRange range;
  T* out;

  __device__ void operator()(int64_t i) const {
    const int64_t at = range.begin + i;
    const int64_t row = range.first_row + at / range.box_columns;
    const int64_t column = range.first_column + at % range.box_columns;
    const auto element = static_cast<uint64_t>(row * range.columns + column);
    const auto words = philox(range.seed, element / 4, range.stream);
    const double u = (static_cast<double>(words[element % 4]) + 0.5) * 0x1p-32;
    const double p = range.normal.p_low + (range.normal.p_high - range.normal.p_low) * u;
    out[i] = to<T>(range.std * fixed::normal_quantile(p));
  }
};

}  // namespace

void draw(std::byte* device, const RandomRange& range, DeviceStream stream) {
  const auto run = [&]<class T>() -> Kernel {
    launch_for(range.count, stream, Draw<T>{range, reinterpret_cast<T*>(device)});
    return {};
  };
  by_float(range.dtype, run);
}

}  // namespace tokamak::gpu
