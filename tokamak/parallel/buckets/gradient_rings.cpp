#include <algorithm>

#include <fmt/format.h>

#include "tokamak/parallel/buckets/buckets.h"

namespace tokamak {

// Declares buffers that buckets use in turn, and windows for each tensor's gradient.
void Buckets::declare_rings() {
  if (!keeps_full_gradients(*context_.options)) {
    // Small buckets beside large ones have small buffers.
    const size_t num_rings = declare_rings(false, 0);
    declare_rings(true, num_rings);
  }
  for (Bucket& b : layout_.buckets) {
    if (!b.is_here) {
      if (!b.full_gradient.valid())
        b.full_gradient =
            declare_state("gradient_full", layout_.gradient, b.numel, StateKind::kBuffer, b);
    }
    for (BucketTensor& t : b.tensors) {
      t.grad_window = declare_window(fmt::format("grad.{}.s{}", t.name, b.stage),
                                     {.dtype = layout_.gradient, .dims = t.local.dims},
                                     b.full_gradient, t.begin, b);
    }
  }
}

// Declares buffers from number `first` on for the buckets that are rests of modules, or for all
// others; returns the number of the next one.
size_t Buckets::declare_rings(bool of_rests, size_t first) {
  struct Ring {
    int32_t busy_until = -1;
    std::vector<Bucket*> users;
  };

  std::vector<Ring> rings(2);
  std::vector<Bucket*> order;
  for (Bucket& b : layout_.buckets) {
    if (b.is_here && b.is_rest == of_rests) order.push_back(&b);
  }
  std::sort(order.begin(), order.end(), [](const Bucket* a, const Bucket* b) {
    return a->first_contribution < b->first_contribution;
  });
  for (Bucket* b : order) {
    // Take the one that is free for longest, since its reduction has had the most time.
    auto ring = std::min_element(rings.begin(), rings.end(), [](const Ring& x, const Ring& y) {
      return x.busy_until < y.busy_until;
    });
    if (ring->busy_until >= b->first_contribution) ring = rings.insert(rings.end(), Ring{});
    ring->busy_until = b->last_contribution;
    ring->users.push_back(b);
  }
  for (const Ring& ring : rings) {
    int64_t most = 0;
    for (const Bucket* b : ring.users) most = std::max(most, b->numel);
    if (most == 0) continue;
    const StateId buffer = local_.declare_once({.name = fmt::format("gradient_ring.{}", first++),
                                                .type = {.dtype = layout_.gradient, .dims = {most}},
                                                .kind = StateKind::kBuffer});
    for (Bucket* b : ring.users) {
      b->full_gradient =
          declare_window("gradient_full." + b->name,
                         {.dtype = layout_.gradient, .dims = {b->numel}}, buffer, 0, *b);
    }
  }
  return first;
}

}  // namespace tokamak
