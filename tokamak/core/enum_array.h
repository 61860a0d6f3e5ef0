// An array with an element for each value of an enum class.
#pragma once

#include <array>
#include <cstddef>

namespace tokamak {

/// Holds `N` values of `T`, indexed by the values 0 to N - 1 of `Enum` or by plain indices.
template <typename Enum, typename T, size_t N>
struct EnumArray : std::array<T, N> {
  using std::array<T, N>::operator[];

  constexpr T& operator[](Enum e) { return (*this)[static_cast<size_t>(e)]; }

  constexpr const T& operator[](Enum e) const { return (*this)[static_cast<size_t>(e)]; }
};

}  // namespace tokamak
