#include "tokamak/ops/pack.h"

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

namespace tokamak {
namespace {

bool has_dim(const TensorType& type, int dim) {
  return dim >= 0 && dim < static_cast<int>(type.dims.size());
}

void require_pieces(std::string_view op, int dim, const std::vector<int64_t>& sizes,
                    const TensorType& whole) {
  const bool fits = has_dim(whole, dim) && !sizes.empty() &&
                    std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s >= 0; }) &&
                    std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) ==
                        whole.dims[static_cast<size_t>(dim)];
  TOK_REQUIRE(fits, "{}: pieces [{}] do not fill dim {} of {}", op, fmt::join(sizes, ", "), dim,
              to_string(whole.dims));
}

// Elements of a piece of extent `longest`; 0 = of the longest.
int64_t row_numel(int dim, const std::vector<int64_t>& sizes, const TensorType& whole,
                  int64_t longest = 0) {
  Dims dims = whole.dims;
  dims[static_cast<size_t>(dim)] =
      longest > 0 ? longest : *std::max_element(sizes.begin(), sizes.end());
  return TensorType{.dtype = whole.dtype, .dims = dims}.numel();
}

// Everything alike but the dim itself.
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

std::string describe_pieces(int dim, const std::vector<int64_t>& sizes) {
  return fmt::format("dim {} as {}", dim, fmt::join(sizes, "+"));
}

}  // namespace

Types Split::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  require_pieces(kName, dim, sizes, in[0]);
  TOK_REQUIRE(longest == 0 || longest >= *std::max_element(sizes.begin(), sizes.end()),
              "split: a piece of [{}] is longer than {}", fmt::join(sizes, ", "), longest);
  return {{.dtype = in[0].dtype,
           .dims = {static_cast<int64_t>(sizes.size()), row_numel(dim, sizes, in[0], longest)}}};
}

std::vector<Strategy> Split::place(std::span<const TensorType>) const {
  return place_partial(1);
}

std::vector<Value> Split::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  return {g.apply(Join{.dim = dim, .sizes = sizes, .dims = g.type(n.in[0]).dims}, {dy[0]})};
}

Cost Split::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string Split::describe() const {
  return describe_pieces(dim, sizes);
}

Types Join::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  const TensorType out{.dtype = in[0].dtype, .dims = dims};
  require_pieces(kName, dim, sizes, out);
  TOK_REQUIRE(in[0].dims.size() == 2 && in[0].dims[0] == static_cast<int64_t>(sizes.size()) &&
                  in[0].dims[1] >= row_numel(dim, sizes, out),
              "join: wanted [{}, at least {}], got {}", sizes.size(), row_numel(dim, sizes, out),
              to_string(in[0]));
  return {out};
}

std::vector<Strategy> Join::place(std::span<const TensorType>) const {
  return place_partial(1);
}

std::vector<Value> Join::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  TOK_CHECK(g.type(n.in[0]).dims[1] == row_numel(dim, sizes, g.type(dy[0])), "padded pieces");
  return {g.apply(Split{.dim = dim, .sizes = sizes}, {dy[0]})};
}

Cost Join::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string Join::describe() const {
  return describe_pieces(dim, sizes);
}

Types SliceDim::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  const bool fits = has_dim(in[0], dim) && 0 <= begin && begin <= end &&
                    end <= in[0].dims[static_cast<size_t>(dim)];
  TOK_REQUIRE(fits, "slice_dim: no elements {} to {} of dim {} in {}", begin, end, dim,
              to_string(in[0].dims));
  TensorType out = in[0];
  out.dims[static_cast<size_t>(dim)] = end - begin;
  return {out};
}

std::vector<Strategy> SliceDim::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_other_dims(in[0], dim, 1);
  all.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return all;
}

std::vector<Value> SliceDim::gradient(Graph&, const Node& n, std::span<const Value>) const {
  return no_gradient(n);
}

Cost SliceDim::cost(std::span<const TensorType>, std::span<const TensorType> out) const {
  return memory_cost(out, out, 0.0);
}

std::string SliceDim::describe() const {
  return fmt::format("dim {} [{}:{}]", dim, begin, end);
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

std::vector<Value> ConcatDim::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  std::vector<Value> dx;
  int64_t begin = 0;
  for (const Value part : n.in) {
    const int64_t end = begin + g.type(part).dims[static_cast<size_t>(dim)];
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

}  // namespace tokamak
