#include <cstring>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention/cache_append.h"

namespace tokamak::cpu {

Kernel prepare(const CacheAppend&, const KernelTypes& types, std::string_view) {
  const int64_t B = types.in[0].dims[0];
  const int64_t T = types.in[0].dims[1];
  const int64_t S = types.in[1].dims[1];
  const int64_t slot = types.in[0].dims[2] * types.in[0].dims[3] * size_of(types.in[0].dtype);
  const bool is_same = types.in[2].numel() == 1;
  return [=](const KernelArgs& a) {
    const int32_t* positions = a.in[2].as<int32_t>();
    for (int64_t b = 0; b < (is_same ? 1 : B); ++b) {
      TOK_CHECK(positions[b] >= 0 && positions[b] + S <= T, "cache of {} slots: {} new at {}", T, S,
                positions[b]);
    }
    parallel_rows(B, [&](int64_t b) {
      const int64_t position = positions[is_same ? 0 : b];
      std::memcpy(a.out[0].as<std::byte>() + (b * T + position) * slot,
                  a.in[1].as<std::byte>() + b * S * slot, S * slot);
    });
  };
}

}  // namespace tokamak::cpu
