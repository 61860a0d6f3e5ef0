#include "tokamak/checkpoint/formats/convert_elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// The trip count is fixed and there are no branches, so that compilers vectorize the block loops.
constexpr size_t kBlock = 1024;
using Floats = std::array<float, kBlock>;

float widen_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFFU;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const uint32_t normal = (magnitude << 13U) + (magnitude >= 0x7C00U ? 0x70000000U : 0x38000000U);
  const uint32_t bits = magnitude < 0x400U ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000U) << 16U);
}

uint16_t narrow_to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F);
  const uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
  uint32_t half = magnitude < 0x38800000U ? subnormal - 0x3F000000U : normal;
  half = magnitude >= 0x477FF000U ? 0x7C00U : half;
  half = magnitude > 0x7F800000U ? 0x7E00U : half;
  return static_cast<uint16_t>(half | ((bits >> 16U) & 0x8000U));
}

uint16_t narrow_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<uint16_t>(is_nan ? (bits >> 16U) | 0x40U : rounded);
}

template <class T, class F>
void load_block(const std::byte* from, size_t count, Floats& floats, F&& widen) {
  std::array<T, kBlock> block;
  if (count < kBlock) block.fill(T{});
  std::memcpy(block.data(), from, count * sizeof(T));
  for (size_t i = 0; i < kBlock; ++i) floats[i] = widen(block[i]);
}

template <class T, class F>
void store_block(std::byte* to, size_t count, const Floats& floats, F&& narrow) {
  std::array<T, kBlock> block;
  for (size_t i = 0; i < kBlock; ++i) block[i] = narrow(floats[i]);
  std::memcpy(to, block.data(), count * sizeof(T));
}

void load(DType dtype, const std::byte* from, size_t count, Floats& floats) {
  switch (dtype) {
    case DType::kF32:
      return load_block<float>(from, count, floats, [](float x) { return x; });
    case DType::kF64:
      return load_block<double>(from, count, floats,
                                [](double x) { return static_cast<float>(x); });
    case DType::kF16:
      return load_block<uint16_t>(from, count, floats, [](uint16_t x) { return widen_half(x); });
    default:
      return load_block<uint16_t>(from, count, floats, [](uint16_t x) {
        return std::bit_cast<float>(static_cast<uint32_t>(x) << 16U);
      });
  }
}

void store(DType dtype, std::byte* to, size_t count, const Floats& floats) {
  switch (dtype) {
    case DType::kF32:
      return store_block<float>(to, count, floats, [](float x) { return x; });
    case DType::kF64:
      return store_block<double>(to, count, floats, [](float x) { return static_cast<double>(x); });
    case DType::kF16:
      return store_block<uint16_t>(to, count, floats, [](float x) { return narrow_to_half(x); });
    default:
      return store_block<uint16_t>(to, count, floats, [](float x) { return narrow_to_bf16(x); });
  }
}

}  // namespace

bool can_convert(DType to, DType from) {
  return to == from || (is_float(to) && is_float(from));
}

void convert_elements(DType to, std::span<std::byte> to_bytes, DType from,
                      std::span<const std::byte> from_bytes) {
  const auto to_width = static_cast<size_t>(size_of(to));
  const auto from_width = static_cast<size_t>(size_of(from));
  const size_t count = from_bytes.size() / from_width;
  TOK_CHECK(can_convert(to, from) && count * from_width == from_bytes.size() &&
                count * to_width == to_bytes.size(),
            "{} to {}", name_of(from), name_of(to));
  if (to == from) {
    if (count > 0) std::memcpy(to_bytes.data(), from_bytes.data(), from_bytes.size());
    return;
  }
  Floats floats{};
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t part = std::min(kBlock, count - first);
    load(from, from_bytes.data() + first * from_width, part, floats);
    store(to, to_bytes.data() + first * to_width, part, floats);
  }
}

}  // namespace tokamak
