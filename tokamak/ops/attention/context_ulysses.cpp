#include <algorithm>
#include <numeric>

#include "tokamak/ops/attention/context_parts.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"

namespace tokamak {
namespace {

// Which heads each member takes: query heads in contiguous parts, each with its key-value heads.
struct HeadShares {
  std::vector<int64_t> q, kv;       // counts, by member
  std::vector<int64_t> kv_sources;  // each member's key-value head, if they are fewer than members

  HeadShares(int64_t H, int64_t K, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      if (K >= n) {
        kv.push_back((j + 1) * K / n - j * K / n);
        q.push_back(kv.back() * (H / K));
        continue;
      }
      // The members that share a key-value head split its query heads.
      const int64_t source = j * K / n;
      const int64_t first = (source * n + K - 1) / K;
      const int64_t sharers = ((source + 1) * n + K - 1) / K - first;
      const int64_t group = H / K;
      kv.push_back(1);
      kv_sources.push_back(source);
      q.push_back((j - first + 1) * group / sharers - (j - first) * group / sharers);
    }
  }
};

// The dims of an operand that are its heads and its tokens.
struct HeadDims {
  int heads = 2;
  int tokens = 1;
};

constexpr HeadDims kLseDims{.heads = 1, .tokens = 2};

// Returns the elements of the longest row that members exchange: S tokens of the most heads.
int64_t row_numel(const Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                  HeadDims dims) {
  TensorType row = g.type(x);
  row.dims[dims.heads] = *std::max_element(heads.begin(), heads.end());
  row.dims[dims.tokens] = c.S;
  return row.numel();
}

// This rank's tokens of all heads -> all tokens, in natural order, of its heads.
Value send_heads(Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                 HeadDims dims = {}) {
  Dims whole = g.type(x).dims;
  whole[dims.tokens] *= c.group.size;
  whole[dims.heads] = heads[c.group.rank];
  const Split split{
      .dim = dims.heads, .sizes = heads, .row_numel = row_numel(g, c, x, heads, dims)};
  const Value rows = g.apply(AllToAll{.group = c.group}, {g.apply(split, {x})});
  return g.apply(Join{.dim = dims.tokens, .sizes = c.sizes(), .dims = whole, .order = c.order()},
                 {rows});
}

// Does the reverse of send_heads.
Value return_heads(Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                   HeadDims dims = {}) {
  Dims mine = g.type(x).dims;
  mine[dims.tokens] = c.S;
  mine[dims.heads] = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  const Split split{.dim = dims.tokens,
                    .sizes = c.sizes(),
                    .row_numel = row_numel(g, c, x, heads, dims),
                    .order = c.order()};
  const Value rows = g.apply(AllToAll{.group = c.group}, {g.apply(split, {x})});
  return g.apply(Join{.dim = dims.heads, .sizes = heads, .dims = mine}, {rows});
}

// Repeats key-value heads, once for each member that takes them.
Value repeat_heads(Graph& g, const Context& c, const HeadShares& shares, Value x) {
  if (shares.kv_sources.empty()) return x;
  std::vector<Value> heads;
  for (const int64_t source : shares.kv_sources)
    heads.push_back(slice(g, c, x, 2, source, source + 1));
  return concat(g, 2, std::move(heads));
}

// dk or dv of this rank's tokens, summed over the members that share a head.
Value return_kv(Graph& g, const Context& c, const HeadShares& shares, Value dx, int64_t K) {
  if (shares.kv_sources.empty()) return return_heads(g, c, dx, shares.kv);
  const DType dtype = g.type(dx).dtype;
  const Value all = return_heads(g, c, cast(g, dx, gradient_dtype(dtype)), shares.kv);
  std::vector<Value> heads;
  for (int64_t j = 0; j < c.group.size; ++j) heads.push_back(slice(g, c, all, 2, j, j + 1));
  const SumSlices sum{.dim = 2, .extent = K, .begins = shares.kv_sources};
  return cast(g, g.apply(sum, heads), dtype);
}

Attention attention_of(const Context& c, const HeadShares& shares) {
  Attention a = c.attention;
  for (int j = 0; j < c.group.rank; ++j) a.first_head += shares.q[j];
  return a;
}

HeadShares shares_of(const Graph& g, const Context& c, const Operands& x) {
  return {g.type(x.q).dims[2], g.type(x.k).dims[2], c.group.size};
}

Operands whole_sequence(Graph& g, const Context& c, const HeadShares& shares, const Operands& x) {
  return {.q = send_heads(g, c, x.q, shares.q),
          .k = send_heads(g, c, repeat_heads(g, c, shares, x.k), shares.kv),
          .v = send_heads(g, c, repeat_heads(g, c, shares, x.v), shares.kv),
          .rows = x.rows};
}

}  // namespace

std::vector<Value> ulysses_attention(Graph& g, const Context& c, const Operands& x) {
  const HeadShares shares = shares_of(g, c, x);
  const Operands whole = whole_sequence(g, c, shares, x);
  const auto out = g.add(attention_of(c, shares), whole.forward());
  const Value o = return_heads(g, c, out[0], shares.q);
  return {o, return_heads(g, c, out[1], shares.q, kLseDims)};
}

std::vector<Value> ulysses_attention_grad(Graph& g, const Context& c, const Operands& x) {
  const HeadShares shares = shares_of(g, c, x);
  Operands whole = whole_sequence(g, c, shares, x);
  whole.o = send_heads(g, c, x.o, shares.q);
  whole.lse = send_heads(g, c, x.lse, shares.q, kLseDims);
  whole.dy = send_heads(g, c, x.dy, shares.q);
  const auto out = g.add(AttentionGrad{.forward = attention_of(c, shares)}, whole.backward());
  const int64_t K = g.type(x.k).dims[2];
  const Value dq = return_heads(g, c, out[0], shares.q);
  const Value dk = return_kv(g, c, shares, out[1], K);
  return {dq, dk, return_kv(g, c, shares, out[2], K)};
}

}  // namespace tokamak
