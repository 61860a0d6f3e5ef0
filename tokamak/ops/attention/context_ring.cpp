#include "tokamak/graph/streams.h"
#include "tokamak/ops/attention/context_attention.h"
#include "tokamak/ops/attention/context_parts.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"

namespace tokamak {
namespace {

// Queries of this rank, and the keys of one source that they take.
struct Block {
  Attention attention;
  int64_t query = 0;
  int64_t query_end = 0;
  int64_t key = 0;
  int64_t key_end = 0;
};

// Dropout counts queries and keys in natural order, so it needs a block for each pair of chunks.
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
      const int q_chunk = mine[q / size];
      const int k_chunk = theirs[k / size];
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

Value shift(Graph& g, const Context& c, Value x) {
  const Value moved = g.apply(Shift{.group = c.group}, {x});
  g.mutable_node(moved.node).stream = kContextStream;
  return moved;
}

// This rank's operands of one block.
Operands operands_of(Graph& g, const Context& c, const Operands& x, Value k, Value v,
                     const Block& b) {
  Operands part{.q = slice(g, c, x.q, 1, b.query, b.query_end),
                .k = slice(g, c, k, 1, b.key, b.key_end),
                .v = slice(g, c, v, 1, b.key, b.key_end),
                .rows = x.rows};
  if (!x.dy.valid()) return part;
  part.o = slice(g, c, x.o, 1, b.query, b.query_end);
  part.lse = slice(g, c, x.lse, 2, b.query, b.query_end);
  part.dy = slice(g, c, x.dy, 1, b.query, b.query_end);
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
      const auto part = g.add(b.attention, operands_of(g, c, x, k, v, b).forward());
      seen[b.query / unit].add(g, b.query, part);
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
          g.add(AttentionGrad{.forward = b.attention}, operands_of(g, c, x, k, v, b).backward());
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

}  // namespace tokamak
