#include <algorithm>

#include <fmt/format.h>

#include "tokamak/parallel/buckets/buckets.h"

namespace tokamak {

// Declares buffers that buckets use in turn, and windows for each tensor's gradient.
void Buckets::declare_rings() {
  if (!keeps_full_gradients(*context_.options)) {
    // Classes of a module have buffers apart, since their sizes differ most.
    std::vector<std::vector<Bucket*>> by_class;  // those of the last class first
    for (size_t b = 0; b < layout_.buckets.size();) {
      const std::span<Bucket> module = module_buckets(layout_.buckets, layout_.buckets[b]);
      by_class.resize(std::max(by_class.size(), module.size()));
      for (size_t k = 0; k < module.size(); ++k) {
        if (module[k].is_here) by_class[module.size() - 1 - k].push_back(&module[k]);
      }
      b += module.size();
    }
    size_t num_rings = 0;
    for (const std::vector<Bucket*>& users : by_class) num_rings = declare_rings(users, num_rings);
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

// Declares buffers from number `first` on that the buckets use in turn; returns the number of the
// next one.
size_t Buckets::declare_rings(std::vector<Bucket*> users, size_t first) {
  struct Ring {
    int32_t busy_until = -1;
    std::vector<Bucket*> users;
  };

  std::vector<Ring> rings(2);
  std::sort(users.begin(), users.end(), [](const Bucket* a, const Bucket* b) {
    return a->first_contribution < b->first_contribution;
  });
  for (Bucket* b : users) {
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
