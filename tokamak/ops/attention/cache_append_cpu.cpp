#include <cstring>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention/cache_append.h"

namespace tokamak::cpu {

Kernel prepare(const CacheAppend&, const KernelTypes& types, std::string_view) {
  const int64_t B = types.in[0].dims[0];
  const int64_t T = types.in[0].dims[1];
  const int64_t S = types.in[1].dims[1];
  const int64_t slot = types.in[0].dims[2] * types.in[0].dims[3] * size_of(types.in[0].dtype);
  return [=](const KernelArgs& a) {
    const int64_t position = a.in[2].as<int32_t>()[0];
    TOK_CHECK(position >= 0 && position + S <= T, "cache of {} slots: {} new at {}", T, S,
              position);
    parallel_rows(B, [&](int64_t b) {
      std::memcpy(a.out[0].as<std::byte>() + (b * T + position) * slot,
                  a.in[1].as<std::byte>() + b * S * slot, S * slot);
    });
  };
}

}  // namespace tokamak::cpu
