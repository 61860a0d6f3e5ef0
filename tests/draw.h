// Random choices for drawn lists of cases: a seed and a case's number draw it again.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#include "tokamak/core/random.h"

namespace tokamak {

/// The number in an environment variable, or `otherwise` where it is not set.
inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Draw {
 public:
  Draw(uint64_t seed, uint64_t index) : seed_(seed), index_(index) {}

  /// One of 0 .. n-1.
  int below(int n) {
    return static_cast<int>(philox(seed_, index_, next_++)[0] % static_cast<uint32_t>(n));
  }

  bool flip() { return below(2) == 1; }

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  uint64_t seed_;
  uint64_t index_;
  uint64_t next_ = 0;
};

}  // namespace tokamak
