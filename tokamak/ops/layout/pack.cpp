#include "tokamak/ops/layout/pack.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

namespace tokamak {
namespace {

bool has_dim(const TensorType& type, int dim) {
  return dim >= 0 && dim < static_cast<int>(type.dims.size());
}

// Whether `order` has each chunk once, in one piece.
bool is_order(const std::vector<int>& order, const std::vector<int64_t>& sizes, int64_t extent) {
  if (order.empty()) return true;
  const auto n = static_cast<int64_t>(order.size());
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t j = 0; j < sorted.size(); ++j) {
    if (sorted[j] != static_cast<int>(j)) return false;
  }
  return extent % n == 0 && std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
           return extent == 0 || size % (extent / n) == 0;
         });
}

void require_pieces(std::string_view op, int dim, const std::vector<int64_t>& sizes,
                    const std::vector<int>& order, const TensorType& whole) {
  const bool fits = has_dim(whole, dim) && !sizes.empty() &&
                    std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s >= 0; }) &&
                    std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == whole.dims[dim];
  TOK_REQUIRE(fits, "{}: pieces [{}] do not fill dim {} of {}", op, fmt::join(sizes, ", "), dim,
              to_string(whole.dims));
  TOK_REQUIRE(is_order(order, sizes, whole.dims[dim]), "{}: chunks [{}] of pieces [{}]", op,
              fmt::join(order, ", "), fmt::join(sizes, ", "));
}

// Returns the elements of the longest piece.
int64_t longest(int dim, const std::vector<int64_t>& sizes, const TensorType& whole) {
  Dims dims = whole.dims;
  dims[dim] = *std::max_element(sizes.begin(), sizes.end());
  return TensorType{.dtype = whole.dtype, .dims = dims}.numel();
}

// Places all operands alike along every dim except `dim`.
std::vector<Strategy> place_other_dims(const TensorType& x, int dim, size_t num_in) {
  std::vector<Strategy> all{replicate(num_in, 1)};
  for (int d = 0; d < static_cast<int>(x.dims.size()); ++d) {
    if (d != dim) all.push_back({.in = std::vector<Shard>(num_in, cut(d)), .out = {cut(d)}});
  }
  return all;
}

std::vector<Strategy> place_partial(size_t num_in) {
  return {replicate(num_in, 1),
          {.in = std::vector<Shard>(num_in, kPartialSum), .out = {kPartialSum}}};
}

std::string describe_pieces(int dim, const std::vector<int64_t>& sizes,
                            const std::vector<int>& order) {
  std::string text = fmt::format("dim {} as {}", dim, fmt::join(sizes, "+"));
  if (!order.empty()) text += fmt::format(" chunks {}", fmt::join(order, ","));
  return text;
}

}  // namespace

Types Split::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  require_pieces(kName, dim, sizes, order, in[0]);
  const int64_t least = longest(dim, sizes, in[0]);
  TOK_REQUIRE(row_numel == 0 || row_numel >= least, "split: rows of {} for pieces of {}", row_numel,
              least);
  return {{.dtype = in[0].dtype,
           .dims = {static_cast<int64_t>(sizes.size()), std::max(row_numel, least)}}};
}

std::vector<Strategy> Split::place(std::span<const TensorType>) const {
  return place_partial(1);
}

std::vector<Value> Split::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  const Join join{.dim = dim, .sizes = sizes, .dims = g.type(n.in[0]).dims, .order = order};
  return {g.apply(join, {dy[0]})};
}

Cost Split::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string Split::describe() const {
  return describe_pieces(dim, sizes, order);
}

Types Join::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  const TensorType out{.dtype = in[0].dtype, .dims = dims};
  require_pieces(kName, dim, sizes, order, out);
  TOK_REQUIRE(in[0].dims.size() == 2 && in[0].dims[0] == static_cast<int64_t>(sizes.size()) &&
                  in[0].dims[1] >= longest(dim, sizes, out),
              "join: wanted [{}, at least {}], got {}", sizes.size(), longest(dim, sizes, out),
              to_string(in[0]));
  return {out};
}

std::vector<Strategy> Join::place(std::span<const TensorType>) const {
  return place_partial(1);
}

std::vector<Value> Join::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  const int64_t row_numel = g.type(n.in[0]).dims[1];
  return {
      g.apply(Split{.dim = dim, .sizes = sizes, .row_numel = row_numel, .order = order}, {dy[0]})};
}

Cost Join::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string Join::describe() const {
  return describe_pieces(dim, sizes, order);
}

Types SliceDim::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  const bool fits =
      has_dim(in[0], dim) && 0 <= begin && begin <= end && zeros >= 0 && end <= in[0].dims[dim];
  TOK_REQUIRE(fits, "slice_dim: no elements {} to {} of dim {} in {}, {} zeros", begin, end, dim,
              to_string(in[0].dims), zeros);
  TensorType out = in[0];
  out.dims[dim] = end - begin + zeros;
  return {out};
}

std::vector<Strategy> SliceDim::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_other_dims(in[0], dim, 1);
  all.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return all;
}

Cost SliceDim::cost(std::span<const TensorType>, std::span<const TensorType> out) const {
  return memory_cost(out, out, 0.0);
}

std::string SliceDim::describe() const {
  std::string text = fmt::format("dim {} [{}:{}]", dim, begin, end);
  if (zeros > 0) text += fmt::format(" and {} zeros", zeros);
  return text;
}

Types ConcatDim::infer(std::span<const TensorType> in) const {
  TOK_REQUIRE(!in.empty() && has_dim(in[0], dim), "concat_dim: wanted tensors with a dim {}", dim);
  const auto d = static_cast<size_t>(dim);
  TensorType out = in[0];
  for (const TensorType& part : in.subspan(1)) {
    TensorType like = part;
    if (has_dim(part, dim)) like.dims[d] = in[0].dims[d];
    TOK_REQUIRE(like == in[0], "concat_dim: parts differ: {} and {}", to_string(in[0]),
                to_string(part));
    out.dims[d] += part.dims[d];
  }
  return {out};
}

std::vector<Strategy> ConcatDim::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_other_dims(in[0], dim, in.size());
  all.push_back({.in = std::vector<Shard>(in.size(), kPartialSum), .out = {kPartialSum}});
  return all;
}

std::vector<Value> ConcatDim::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  std::vector<Value> dx;
  int64_t begin = 0;
  for (const Value part : n.in) {
    const int64_t end = begin + g.type(part).dims[dim];
    dx.push_back(g.apply(SliceDim{.dim = dim, .begin = begin, .end = end}, {dy[0]}));
    begin = end;
  }
  return dx;
}

Cost ConcatDim::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string ConcatDim::describe() const {
  return fmt::format("dim {}", dim);
}

Types SumSlices::infer(std::span<const TensorType> in) const {
  TOK_REQUIRE(!in.empty() && begins.size() == in.size() && has_dim(in[0], dim),
              "sum_slices: wanted tensors with a dim {} and a place for each, got {} for {}", dim,
              begins.size(), in.size());
  const auto d = static_cast<size_t>(dim);
  TensorType out{.dtype = gradient_dtype(in[0].dtype), .dims = in[0].dims};
  out.dims[d] = extent;
  for (size_t i = 0; i < in.size(); ++i) {
    TensorType like = in[i];
    if (has_dim(in[i], dim)) like.dims[d] = extent;
    TOK_REQUIRE(is_float(in[i].dtype) && like.dims == out.dims && begins[i] >= 0 &&
                    begins[i] + in[i].dims[d] <= extent,
                "sum_slices: {} does not fit at {} of dim {} of {}", to_string(in[i]), begins[i],
                dim, to_string(out));
  }
  return {out};
}

std::vector<Strategy> SumSlices::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_other_dims(in[0], dim, in.size());
  all.push_back({.in = std::vector<Shard>(in.size(), kPartialSum), .out = {kPartialSum}});
  return all;
}

Cost SumSlices::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  for (const TensorType& part : in) cost.flops += static_cast<double>(part.numel());
  return cost;
}

std::string SumSlices::describe() const {
  return fmt::format("dim {} at {}", dim, fmt::join(begins, ","));
}

}  // namespace tokamak
