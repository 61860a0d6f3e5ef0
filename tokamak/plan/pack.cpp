#include <algorithm>
#include <numeric>

#include "tokamak/plan/arenas.h"

namespace tokamak {
namespace {

using PlacingOrder = std::vector<size_t>;

// Places each lifetime at the lowest offset that is free of those before it in `order`.
int64_t place(std::vector<Lifetime>& lifetimes, const PlacingOrder& order) {
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

template <class Key>
PlacingOrder largest_first(const std::vector<Lifetime>& lifetimes, const Key& key) {
  PlacingOrder order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return key(lifetimes[a]) > key(lifetimes[b]); });
  return order;
}

int64_t size_of_life(const Lifetime& life) {
  return life.bytes;
}

int64_t steps_of(const Lifetime& life) {
  return int64_t{life.last} - life.first + 1;
}

// Returns the most bytes that are alive at once, which no packing undercuts.
int64_t most_alive(const std::vector<Lifetime>& lifetimes) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const Lifetime& life : lifetimes) {
    changes.emplace_back(life.first, life.bytes);
    changes.emplace_back(int64_t{life.last} + 1, -life.bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t alive = 0;
  int64_t most = 0;
  for (const auto& [unused, bytes] : changes) most = std::max(most, alive += bytes);
  return most;
}

// Moves those that reach up to `total` halfway to the front.
void promote_highest(const std::vector<Lifetime>& lifetimes, int64_t total, PlacingOrder& order) {
  for (size_t p = 1; p < order.size(); ++p) {
    const Lifetime& life = lifetimes[order[p]];
    if (life.offset + life.bytes != total) continue;
    const auto at = order.begin() + static_cast<std::ptrdiff_t>(p);
    std::rotate(order.begin() + static_cast<std::ptrdiff_t>(p / 2), at, at + 1);
  }
}

}  // namespace

int64_t pack(std::vector<Lifetime>& lifetimes) {
  return place(lifetimes, largest_first(lifetimes, size_of_life));
}

int64_t pack_tightly(std::vector<Lifetime>& lifetimes) {
  constexpr double kMostSteps = 1e8;
  constexpr int kMostTries = 100;
  const auto count = static_cast<double>(lifetimes.size());
  const int tries = std::clamp(static_cast<int>(kMostSteps / (count * count + 1.0)), 1, kMostTries);
  const int64_t least = most_alive(lifetimes);
  int64_t best = pack(lifetimes);
  std::vector<Lifetime> tried = lifetimes;
  for (PlacingOrder order :
       {largest_first(lifetimes, size_of_life),
        largest_first(lifetimes, [](const Lifetime& l) { return l.bytes * steps_of(l); }),
        largest_first(lifetimes, steps_of)}) {
    for (int i = 0; i < tries && best > least; ++i) {
      const int64_t total = place(tried, order);
      if (total < best) {
        best = total;
        lifetimes = tried;
      }
      promote_highest(tried, total, order);
    }
  }
  return best;
}

}  // namespace tokamak
