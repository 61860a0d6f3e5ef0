// Element types and the two 16-bit floats that C++20 lacks.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace tokamak {

enum class DType : uint8_t {
  kF32,
  kF64,
  kBF16,
  kF16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kBool,
  kE4M3,
  kE5M2
};

/// Returns the bytes per element.
constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
    case DType::kBool:
    case DType::kE4M3:
    case DType::kE5M2:
      return 1;
  }
  return 0;
}

/// Whether elements stand for values only under a scale.
constexpr bool is_scaled(DType dtype) {
  return dtype == DType::kE4M3 || dtype == DType::kE5M2;
}

/// Whether ops compute with the elements directly, as they cannot with scaled ones.
constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

/// Returns "float32", "bfloat16", ..., as PyTorch, configs and our messages spell them.
std::string_view name_of(DType dtype);

/// The inverse of name_of; throws Error naming `what` if there is no such type.
DType dtype_from_name(std::string_view name, std::string_view what);

/// Brain float, the upper half of a float, rounded to nearest even.
struct BF16 {
  uint16_t bits = 0;

  BF16() = default;

  explicit BF16(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    const bool is_nan = (u & 0x7FFFFFFFU) > 0x7F800000U;
    bits = static_cast<uint16_t>(is_nan ? (u >> 16U) | 0x40U
                                        : (u + 0x7FFFU + ((u >> 16U) & 1U)) >> 16U);
  }

  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
  }
};

/// IEEE half precision, for reading and exporting weights only.
struct F16 {
  uint16_t bits = 0;

  F16() = default;
  explicit F16(float x);
  explicit operator float() const;
};

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kI64;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kU8;
template <>
inline constexpr DType kDTypeOf<uint16_t> = DType::kU16;
template <>
inline constexpr DType kDTypeOf<uint32_t> = DType::kU32;

}  // namespace tokamak
