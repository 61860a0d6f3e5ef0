#include "tokamak/ops/attention/cache_append.h"

namespace tokamak {

Types CacheAppend::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  const Dims& cache = in[0].dims;
  const Dims& added = in[1].dims;
  TOK_REQUIRE(cache.size() == 4 && added.size() == 4 && in[0].dtype == in[1].dtype &&
                  cache[0] == added[0] && cache[2] == added[2] && cache[3] == added[3],
              "{}: cache is {}, new is {}", kName, to_string(in[0]), to_string(in[1]));
  TOK_REQUIRE(added[1] <= cache[1], "{}: {} new tokens for a cache of {}", kName, added[1],
              cache[1]);
  const Dims& position = in[2].dims;
  TOK_REQUIRE(in[2].dtype == DType::kI32 && (position == Dims{1} || position == Dims{cache[0]}),
              "{}: wanted a position of int32[1] or one per sample, got {}", kName,
              to_string(in[2]));
  return {in[0]};
}

std::vector<Strategy> CacheAppend::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(3, 1)};
  const Shard of_samples = in[2].dims == Dims{1} ? kReplicated : cut(0);
  for (const int dim : {0, 2, 3}) {
    all.push_back(
        {.in = {cut(dim), cut(dim), dim == 0 ? of_samples : kReplicated}, .out = {cut(dim)}});
  }
  return all;
}

Cost CacheAppend::cost(std::span<const TensorType> in, std::span<const TensorType>) const {
  return memory_cost(in.subspan(1), in.subspan(1, 1), 0.0);
}

}  // namespace tokamak
