#include "tokamak/comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr int64_t kBlock = 1024;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, BF16> || std::is_same_v<T, F16>, float, T>;

template <ReduceOp kOp, class A>
A combine(A a, A b) {
  if constexpr (kOp == ReduceOp::kSum) {
    return static_cast<A>(a + b);
  } else {
    return a < b || b != b ? b : a;
  }
}

template <class T, ReduceOp kOp>
void reduce_blocks(std::span<const std::byte* const> parts, std::byte* out, int64_t count) {
  using A = Accumulator<T>;
  std::array<A, kBlock> sum;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = std::min(kBlock, count - first);
    const T* head = reinterpret_cast<const T*>(parts[0]) + first;
    for (int64_t i = 0; i < block; ++i) sum[i] = static_cast<A>(head[i]);
    for (const std::byte* part : parts.subspan(1)) {
      const T* x = reinterpret_cast<const T*>(part) + first;
      for (int64_t i = 0; i < block; ++i) sum[i] = combine<kOp>(sum[i], static_cast<A>(x[i]));
    }
    T* y = reinterpret_cast<T*>(out) + first;
    for (int64_t i = 0; i < block; ++i) y[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
void reduce_as(std::span<const std::byte* const> parts, std::byte* out, int64_t count,
               ReduceOp op) {
  if (op == ReduceOp::kSum) {
    reduce_blocks<T, ReduceOp::kSum>(parts, out, count);
  } else {
    reduce_blocks<T, ReduceOp::kMax>(parts, out, count);
  }
}

}  // namespace

void reduce_in_order(std::span<const std::byte* const> parts, std::byte* out, int64_t count,
                     DType dtype, ReduceOp op) {
  if (parts.size() == 1) {
    if (parts[0] != out) std::memmove(out, parts[0], count * size_of(dtype));
    return;
  }
  switch (dtype) {
    case DType::kF32:
      return reduce_as<float>(parts, out, count, op);
    case DType::kF64:
      return reduce_as<double>(parts, out, count, op);
    case DType::kBF16:
      return reduce_as<BF16>(parts, out, count, op);
    case DType::kF16:
      return reduce_as<F16>(parts, out, count, op);
    case DType::kI32:
      return reduce_as<int32_t>(parts, out, count, op);
    case DType::kI64:
      return reduce_as<int64_t>(parts, out, count, op);
    case DType::kU8:
      return reduce_as<uint8_t>(parts, out, count, op);
    case DType::kU16:
      return reduce_as<uint16_t>(parts, out, count, op);
    case DType::kU32:
      return reduce_as<uint32_t>(parts, out, count, op);
    case DType::kBool:
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  TOK_CHECK(false, "no sum or maximum of {}", name_of(dtype));
}

}  // namespace tokamak
