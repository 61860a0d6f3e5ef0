#include "tokamak/graph/placement.h"

namespace tokamak {

Strategy replicate(size_t num_in, size_t num_out) {
  return {.in = std::vector<Shard>(num_in, kReplicated),
          .out = std::vector<Shard>(num_out, kReplicated)};
}

std::vector<Strategy> place_elementwise(std::span<const TensorType> in, size_t num_out) {
  std::vector<Strategy> strategies{replicate(in.size(), num_out)};
  const auto rank = in[0].dims.size();
  for (size_t d = 0; d < rank; ++d) {
    Strategy s = replicate(in.size(), num_out);
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i].dims == in[0].dims) s.in[i] = cut(static_cast<int>(d));
    }
    for (Shard& out : s.out) out = cut(static_cast<int>(d));
    strategies.push_back(std::move(s));
  }
  return strategies;
}

}  // namespace tokamak
