#include "tokamak/graph/state_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

// Parents are declared before their windows.
int64_t window_offset(const StateTable& states, const StateLayout& layout, StateId id) {
  const StateDecl& decl = states[id];
  TOK_CHECK(decl.window_of.index < id.index, "{} is a window of a later State", decl.name);
  const StateDecl& parent = states[decl.window_of];
  TOK_CHECK(!parent.is_absent && !layout.is_in_host(decl.window_of) &&
                decl.type.dtype == parent.type.dtype && decl.window_begin >= 0 &&
                decl.window_begin + decl.type.numel() <= parent.type.numel(),
            "{} {} is not a window of {} {} from element {}", decl.name, to_string(decl.type),
            parent.name, to_string(parent.type), decl.window_begin);
  return layout[decl.window_of] + decl.window_begin * size_of(decl.type.dtype);
}

}  // namespace

StateLayout lay_out(const StateTable& states, std::span<const StateId> in_host) {
  std::vector<int32_t> order(states.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const StateDecl& x = states[{a}];
    const StateDecl& y = states[{b}];
    return std::pair(x.kind, x.block) < std::pair(y.kind, y.block);
  });
  StateLayout layout{.offsets = std::vector<int64_t>(order.size(), StateLayout::kNowhere),
                     .in_host = std::vector<bool>(order.size())};
  for (const StateId id : in_host) layout.in_host[id.index] = true;
  for (const int32_t i : order) {
    const StateDecl& decl = states[{i}];
    if (decl.is_absent || decl.window_of.valid()) continue;
    int64_t& end = layout.in_host[i] ? layout.host_bytes : layout.bytes;
    layout.offsets[i] = end;
    end += (decl.type.bytes() + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }
  for (int32_t i = 0; i < states.size(); ++i) {
    if (!states[{i}].is_absent && states[{i}].window_of.valid())
      layout.offsets[i] = window_offset(states, layout, {i});
  }
  return layout;
}

}  // namespace tokamak
