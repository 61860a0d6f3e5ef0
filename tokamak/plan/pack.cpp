#include <algorithm>
#include <numeric>

#include "tokamak/plan/arenas.h"

namespace tokamak {

int64_t pack(std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<size_t> done;  // by offset
  int64_t total = 0;
  for (const size_t i : order) {
    Lifetime& life = lifetimes[i];
    int64_t offset = 0;
    for (const size_t j : done) {
      const Lifetime& other = lifetimes[j];
      if (other.last < life.first || life.last < other.first) continue;
      if (other.offset >= offset + life.bytes) break;
      offset = std::max(offset, other.offset + other.bytes);
    }
    life.offset = offset;
    total = std::max(total, offset + life.bytes);
    const auto at =
        std::upper_bound(done.begin(), done.end(), offset,
                         [&](int64_t value, size_t j) { return value < lifetimes[j].offset; });
    done.insert(at, i);
  }
  return total;
}

}  // namespace tokamak
