#include "tokamak/ops/context_parts.h"

#include <algorithm>
#include <numeric>

#include "tokamak/ops/cast.h"
#include "tokamak/ops/collective.h"
#include "tokamak/ops/context_attention.h"
#include "tokamak/ops/pack.h"
#include "tokamak/ops/reshape.h"

namespace tokamak {

std::vector<int> Context::order() const {
  std::vector<int> order(static_cast<size_t>(group.size) * chunks(0).size());
  int next = 0;
  for (int rank = 0; rank < group.size; ++rank) {
    for (const int chunk : chunks(rank)) order[static_cast<size_t>(chunk)] = next++;
  }
  return order;
}

Value slice(Graph& g, Value x, int dim, int64_t begin, int64_t end) {
  if (begin == 0 && end == g.type(x).dims[static_cast<size_t>(dim)]) return x;
  return g.apply(SliceDim{.dim = dim, .begin = begin, .end = end}, {x});
}

Value concat(Graph& g, int dim, std::vector<Value> parts) {
  if (parts.size() == 1) return parts[0];
  return g.apply(ConcatDim{.dim = dim}, std::move(parts));
}

Value cast(Graph& g, Value x, DType dtype) {
  return g.type(x).dtype == dtype ? x : g.apply(Cast{.dtype = dtype}, {x});
}

namespace {

// -------- all-gather

// x [B, S, ..] of every member -> [B, n S, ..] in natural order.
Value gather_sequence(Graph& g, const Context& c, Value x) {
  Dims dims = g.type(x).dims;
  dims[1] *= c.group.size;
  const Value rows = g.apply(AllGather{.group = c.group}, {x});
  return g.apply(Join{.dim = 1, .sizes = c.sizes(), .dims = dims, .order = c.order()},
                 {g.apply(Reshape{.dims = {c.group.size, -1}}, {rows})});
}

// The sum over members of x [B, n S, ..] in natural order -> this rank's [B, S, ..].
Value scatter_sequence(Graph& g, const Context& c, Value x) {
  Dims dims = g.type(x).dims;
  dims[1] = c.S;
  const Value rows = g.apply(Split{.dim = 1, .sizes = c.sizes(), .order = c.order()}, {x});
  return g.apply(Reshape{.dims = dims}, {g.apply(ReduceScatter{.group = c.group}, {rows})});
}

// One of this rank's chunks of queries, over the keys up to its end.
struct Prefix {
  Attention attention;
  int64_t begin = 0;  // of the queries here
  int64_t end = 0;
  int64_t keys = 0;
};

std::vector<Prefix> prefixes(const Context& c) {
  std::vector<Prefix> all;
  int64_t begin = 0;
  for (const int chunk : c.chunks(c.group.rank)) {
    Prefix p{.attention = c.attention, .begin = begin, .end = begin + c.chunk()};
    p.attention.first_query += chunk * c.chunk();
    p.keys = (chunk + 1) * c.chunk();
    all.push_back(p);
    begin = p.end;
  }
  return all;
}

}  // namespace

std::vector<Value> gathered_attention(Graph& g, const Context& c, const Operands& x) {
  const Value k = gather_sequence(g, c, x.k);
  const Value v = gather_sequence(g, c, x.v);
  std::vector<Value> o;
  std::vector<Value> lse;
  for (const Prefix& p : prefixes(c)) {
    const Operands part{.q = slice(g, x.q, 1, p.begin, p.end),
                        .k = slice(g, k, 1, 0, p.keys),
                        .v = slice(g, v, 1, 0, p.keys),
                        .rows = x.rows};
    const auto out = g.add(p.attention, part.forward());
    o.push_back(out[0]);
    lse.push_back(out[1]);
  }
  return {concat(g, 1, std::move(o)), concat(g, 2, std::move(lse))};
}

std::vector<Value> gathered_attention_grad(Graph& g, const Context& c, const Operands& x) {
  const Value k = gather_sequence(g, c, x.k);
  const Value v = gather_sequence(g, c, x.v);
  std::vector<Value> dq;
  std::vector<Value> dk;
  std::vector<Value> dv;
  for (const Prefix& p : prefixes(c)) {
    const Operands part{.q = slice(g, x.q, 1, p.begin, p.end),
                        .k = slice(g, k, 1, 0, p.keys),
                        .v = slice(g, v, 1, 0, p.keys),
                        .rows = x.rows,
                        .o = slice(g, x.o, 1, p.begin, p.end),
                        .lse = slice(g, x.lse, 2, p.begin, p.end),
                        .dy = slice(g, x.dy, 1, p.begin, p.end)};
    const auto out = g.add(AttentionGrad{.forward = p.attention}, part.backward());
    dq.push_back(out[0]);
    dk.push_back(out[1]);
    dv.push_back(out[2]);
  }
  const auto total = [&](const std::vector<Value>& parts) {
    const SumSlices sum{
        .dim = 1, .extent = g.type(k).dims[1], .begins = std::vector<int64_t>(parts.size(), 0)};
    return cast(g, scatter_sequence(g, c, g.apply(sum, parts)), g.type(k).dtype);
  };
  const Value dk_total = total(dk);
  return {concat(g, 1, std::move(dq)), dk_total, total(dv)};
}

namespace {

// -------- ring

// Queries of this rank that take keys of one source.
struct Block {
  Attention attention;
  int64_t query = 0;
  int64_t query_end = 0;
  int64_t key = 0;
  int64_t key_end = 0;
};

// Dropout counts queries and keys in natural order, so it needs each chunk by itself.
void add_block(const Context& c, int source, const Block& block, std::vector<Block>& blocks) {
  if (c.attention.dropout_p == 0.0) {
    blocks.push_back(block);
    return;
  }
  const int64_t size = c.chunk();
  const std::vector<int> mine = c.chunks(c.group.rank);
  const std::vector<int> theirs = c.chunks(source);
  for (int64_t q = block.query; q < block.query_end; q += size) {
    for (int64_t k = block.key; k < block.key_end; k += size) {
      const int q_chunk = mine[static_cast<size_t>(q / size)];
      const int k_chunk = theirs[static_cast<size_t>(k / size)];
      if (k_chunk > q_chunk) continue;
      Block one{.attention = block.attention,
                .query = q,
                .query_end = q + size,
                .key = k,
                .key_end = k + size};
      one.attention.causal = k_chunk == q_chunk;
      one.attention.first_query += q_chunk * size;
      one.attention.first_key += k_chunk * size;
      blocks.push_back(one);
    }
  }
}

std::vector<Block> blocks_of(const Context& c, int source) {
  std::vector<Block> blocks;
  Block block{.attention = c.attention, .query_end = c.S, .key_end = c.S};
  block.attention.causal = source == c.group.rank;
  if (source < c.group.rank) block.key_end = c.chunk();
  if (source > c.group.rank) block.query = c.chunk();
  add_block(c, source, block, blocks);
  return blocks;
}

int source_at(const Context& c, int step) {
  return (c.group.rank + c.group.size - step) % c.group.size;
}

// Beside compute, and apart from other communication, whose order is another.
constexpr int kRingStream = 1000;

Value shift(Graph& g, const Context& c, Value x) {
  const Value moved = g.apply(Shift{.group = c.group}, {x});
  g.mutable_node(moved.node).stream = kRingStream;
  return moved;
}

// This rank's operands of one block.
Operands operands_of(Graph& g, const Operands& x, Value k, Value v, const Block& b) {
  Operands part{.q = slice(g, x.q, 1, b.query, b.query_end),
                .k = slice(g, k, 1, b.key, b.key_end),
                .v = slice(g, v, 1, b.key, b.key_end),
                .rows = x.rows};
  if (!x.dy.valid()) return part;
  part.o = slice(g, x.o, 1, b.query, b.query_end);
  part.lse = slice(g, x.lse, 2, b.query, b.query_end);
  part.dy = slice(g, x.dy, 1, b.query, b.query_end);
  return part;
}

// Sums that grow in fp32.
class Total {
 public:
  Total(Graph& g, int64_t extent) : g_(g), extent_(extent) {}

  void add(Value part, int64_t begin) {
    if (total_.valid()) {
      total_ =
          g_.apply(SumSlices{.dim = 1, .extent = extent_, .begins = {0, begin}}, {total_, part});
    } else {
      total_ = g_.apply(SumSlices{.dim = 1, .extent = extent_, .begins = {begin}}, {part});
    }
  }

  Value total() const { return total_; }

  void replace(Value total) { total_ = total; }

 private:
  Graph& g_;
  int64_t extent_;
  Value total_;
};

}  // namespace

namespace {

// Attention of some queries over the keys seen so far.
struct Seen {
  int64_t begin = 0;
  int64_t end = 0;
  Value o, lse;

  void add(Graph& g, int64_t query, const std::vector<Value>& part) {
    if (!o.valid()) {
      o = cast(g, part[0], gradient_dtype(g.type(part[0]).dtype));
      lse = part[1];
      return;
    }
    const auto merged = g.add(MergeAttention{.first = query - begin}, {o, lse, part[0], part[1]});
    o = merged[0];
    lse = merged[1];
  }
};

}  // namespace

std::vector<Value> ring_attention(Graph& g, const Context& c, const Operands& x) {
  const int64_t unit = c.attention.dropout_p > 0.0 ? c.chunk() : c.S;
  std::vector<Seen> seen;
  for (int64_t begin = 0; begin < c.S; begin += unit)
    seen.push_back({.begin = begin, .end = begin + unit});
  Value k = x.k;
  Value v = x.v;
  for (int step = 0; step < c.group.size; ++step) {
    const bool is_last = step + 1 == c.group.size;
    const Value next_k = is_last ? Value{} : shift(g, c, k);
    const Value next_v = is_last ? Value{} : shift(g, c, v);
    for (const Block& b : blocks_of(c, source_at(c, step))) {
      const auto part = g.add(b.attention, operands_of(g, x, k, v, b).forward());
      seen[static_cast<size_t>(b.query / unit)].add(g, b.query, part);
    }
    k = next_k;
    v = next_v;
  }
  std::vector<Value> o;
  std::vector<Value> lse;
  for (const Seen& s : seen) {
    o.push_back(cast(g, s.o, g.type(x.q).dtype));
    lse.push_back(s.lse);
  }
  return {concat(g, 1, std::move(o)), concat(g, 2, std::move(lse))};
}

// The sums of dk and dv go round with their keys and values, and one step further: home.
std::vector<Value> ring_attention_grad(Graph& g, const Context& c, const Operands& x) {
  Value k = x.k;
  Value v = x.v;
  Total dq(g, c.S);
  Total dk(g, c.S);
  Total dv(g, c.S);
  for (int step = 0; step < c.group.size; ++step) {
    const bool is_last = step + 1 == c.group.size;
    const Value next_k = is_last ? Value{} : shift(g, c, k);
    const Value next_v = is_last ? Value{} : shift(g, c, v);
    for (const Block& b : blocks_of(c, source_at(c, step))) {
      const auto part =
          g.add(AttentionGrad{.forward = b.attention}, operands_of(g, x, k, v, b).backward());
      dq.add(part[0], b.query);
      dk.add(part[1], b.key);
      dv.add(part[2], b.key);
    }
    if (c.group.size > 1) {
      dk.replace(shift(g, c, dk.total()));
      dv.replace(shift(g, c, dv.total()));
    }
    k = next_k;
    v = next_v;
  }
  return {cast(g, dq.total(), g.type(x.q).dtype), cast(g, dk.total(), g.type(x.k).dtype),
          cast(g, dv.total(), g.type(x.v).dtype)};
}

namespace {

// -------- Ulysses

// Which heads each member takes: query heads in contiguous parts, each with its key-value heads.
struct HeadShares {
  std::vector<int64_t> q, kv;       // counts, by member
  std::vector<int64_t> kv_sources;  // with fewer key-value heads than members: the one of each

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

// Which dims of an operand are its heads and its tokens.
struct HeadDims {
  int heads = 2;
  int tokens = 1;
};

constexpr HeadDims kLseDims{.heads = 1, .tokens = 2};

// Elements of the longest row that members exchange: their tokens of the most heads.
int64_t row_numel(const Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                  HeadDims dims) {
  TensorType row = g.type(x);
  row.dims[static_cast<size_t>(dims.heads)] = *std::max_element(heads.begin(), heads.end());
  row.dims[static_cast<size_t>(dims.tokens)] = c.S;
  return row.numel();
}

// This rank's tokens of all heads -> all tokens, in natural order, of its heads.
Value send_heads(Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                 HeadDims dims = {}) {
  Dims whole = g.type(x).dims;
  whole[static_cast<size_t>(dims.tokens)] *= c.group.size;
  whole[static_cast<size_t>(dims.heads)] = heads[static_cast<size_t>(c.group.rank)];
  const Split split{
      .dim = dims.heads, .sizes = heads, .row_numel = row_numel(g, c, x, heads, dims)};
  const Value rows = g.apply(AllToAll{.group = c.group}, {g.apply(split, {x})});
  return g.apply(Join{.dim = dims.tokens, .sizes = c.sizes(), .dims = whole, .order = c.order()},
                 {rows});
}

// The way back.
Value return_heads(Graph& g, const Context& c, Value x, const std::vector<int64_t>& heads,
                   HeadDims dims = {}) {
  Dims mine = g.type(x).dims;
  mine[static_cast<size_t>(dims.tokens)] = c.S;
  mine[static_cast<size_t>(dims.heads)] = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  const Split split{.dim = dims.tokens,
                    .sizes = c.sizes(),
                    .row_numel = row_numel(g, c, x, heads, dims),
                    .order = c.order()};
  const Value rows = g.apply(AllToAll{.group = c.group}, {g.apply(split, {x})});
  return g.apply(Join{.dim = dims.heads, .sizes = heads, .dims = mine}, {rows});
}

// Key-value heads, once for each member that takes them.
Value repeat_heads(Graph& g, const HeadShares& shares, Value x) {
  if (shares.kv_sources.empty()) return x;
  std::vector<Value> heads;
  for (const int64_t source : shares.kv_sources)
    heads.push_back(slice(g, x, 2, source, source + 1));
  return concat(g, 2, std::move(heads));
}

// dk or dv of this rank's tokens, summed over the members that share a head.
Value return_kv(Graph& g, const Context& c, const HeadShares& shares, Value dx, int64_t K) {
  if (shares.kv_sources.empty()) return return_heads(g, c, dx, shares.kv);
  const DType dtype = g.type(dx).dtype;
  const Value all = return_heads(g, c, cast(g, dx, gradient_dtype(dtype)), shares.kv);
  std::vector<Value> heads;
  for (int64_t j = 0; j < c.group.size; ++j) heads.push_back(slice(g, all, 2, j, j + 1));
  const SumSlices sum{.dim = 2, .extent = K, .begins = shares.kv_sources};
  return cast(g, g.apply(sum, heads), dtype);
}

Attention attention_of(const Context& c, const HeadShares& shares) {
  Attention a = c.attention;
  for (int j = 0; j < c.group.rank; ++j) a.first_head += shares.q[static_cast<size_t>(j)];
  return a;
}

HeadShares shares_of(const Graph& g, const Context& c, const Operands& x) {
  return {g.type(x.q).dims[2], g.type(x.k).dims[2], c.group.size};
}

Operands whole_sequence(Graph& g, const Context& c, const HeadShares& shares, const Operands& x) {
  return {.q = send_heads(g, c, x.q, shares.q),
          .k = send_heads(g, c, repeat_heads(g, shares, x.k), shares.kv),
          .v = send_heads(g, c, repeat_heads(g, shares, x.v), shares.kv),
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
