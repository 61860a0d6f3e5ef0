#include "tokamak/parallel/matmuls/tensor_ring.h"

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/add.h"

namespace tokamak {
namespace {

// Rings run beside compute, and apart from other communication, which has another order.
constexpr int kTensorRingStream = 1001;

Value shift(Graph& g, const TensorRing& ring, Value x, int step) {
  Label label = g.label;
  label.origin.part = step;
  const LabelScope scope(g, label);
  const Value moved = g.apply(Shift{.group = ring.group}, {x});
  g.mutable_node(moved.node).stream = kTensorRingStream;
  return moved;
}

// Returns the rank that is `steps` places before this one on the ring.
int rank_before(const TensorRing& ring, int steps) {
  return (ring.group.rank + ring.group.size - steps) % ring.group.size;
}

}  // namespace

std::vector<Value> by_rank(const TensorRing& ring, const std::vector<Value>& arrived) {
  std::vector<Value> sorted(arrived.size());
  for (int step = 0; step < ring.group.size; ++step)
    sorted[rank_before(ring, step)] = arrived[step];
  return sorted;
}

std::vector<Value> ring_gather(Graph& g, const TensorRing& ring, Value mine,
                               const std::function<void(Value chunk)>& use) {
  TOK_CHECK(g.type(mine).dims[ring.dim] == ring.chunk, "{} is no chunk of {}",
            to_string(g.type(mine)), ring.chunk);
  std::vector<Value> arrived{mine};
  for (int step = 0; step < ring.group.size; ++step) {
    const Value chunk = arrived.back();
    if (step + 1 < ring.group.size) arrived.push_back(shift(g, ring, chunk, step));
    use(chunk);
  }
  return by_rank(ring, arrived);
}

// The sum for rank r begins at rank r + 1 and reaches r after size - 1 steps.
Value ring_reduce_scatter(Graph& g, const TensorRing& ring,
                          const std::function<Value(int64_t begin, int64_t end)>& partial) {
  Value sum;
  for (int step = 0; step < ring.group.size; ++step) {
    const Value arriving = sum.valid() ? shift(g, ring, sum, step) : Value{};
    const int64_t begin = rank_before(ring, step + 1) * ring.chunk;
    const Value term = partial(begin, begin + ring.chunk);
    sum = arriving.valid() ? g.apply(Add{}, {arriving, term}) : term;
  }
  return sum;
}

}  // namespace tokamak
