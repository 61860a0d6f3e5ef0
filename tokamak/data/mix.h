// Weighted mixes determine which source serves window i, and with which of its own windows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

struct WeightedPath {
  std::string path;
  /// Millionths, as the user wrote them; not normalised.
  int64_t weight = 1;
};

/// Parses "0.7 A 0.3 B", or one plain path, as which all text counts that names a file. Weights are
/// decimals with up to six digits after the point. Throws Error.
std::vector<WeightedPath> parse_mix(const std::string& text);

/// Deals windows to sources. After every block each source has served its exact share, rounded;
/// inside a block its windows are evenly spread, with a phase drawn from (seed, block).
class Mix {
 public:
  struct Place {
    size_t source = 0;
    int64_t index = 0;
  };

  Mix(std::vector<int64_t> weights, uint64_t seed);

  /// Returns the source of window `window` and the count of earlier windows from that source.
  Place at(int64_t window);

  /// Returns the window that serves window `index` of `source`, as the inverse of at().
  int64_t window_of(size_t source, int64_t index) const;

  /// Counts the windows of `source` among the first `window` ones; any thread may call it.
  int64_t served_before(size_t source, int64_t window) const;

 private:
  int64_t share_before(size_t source, int64_t window) const;
  std::vector<Place> deal(int64_t block) const;

  std::vector<int64_t> bounds_;
  uint64_t seed_ = 0;
  int64_t block_size_ = 1;
  int64_t block_ = -1;
  std::vector<Place> dealt_;
};

}  // namespace tokamak
