#include "tokamak/train/guard/bad_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/checkpoint/formats/convert_elements.h"
#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
constexpr size_t kMostKinds = 4;

bool is_finite(const StateAccess& access, StateId state, int64_t first, int64_t count) {
  const DType dtype = access.states()[state].type.dtype;
  const int64_t width = size_of(dtype);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  for (int64_t at = first; at < first + count; at += kElementsAtOnce) {
    const int64_t n = std::min(kElementsAtOnce, first + count - at);
    bytes.resize(static_cast<size_t>(n * width));
    values.resize(static_cast<size_t>(n));
    access.read_at(state, at * width, bytes);
    convert_elements(DType::kF32, std::as_writable_bytes(std::span(values)), dtype, bytes);
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) return false;
  }
  return true;
}

}  // namespace

StateId gradient_of(const StateTable& states, StateId parameter) {
  const std::string& name = states[parameter].name;
  const std::string bucket = name.substr(name.find('.') + 1);
  for (const std::string& gradient :
       {"gradient_slice." + bucket, "gradient." + bucket, "grad." + name}) {
    const StateId found = states.find(gradient);
    if (found.valid() && !states[found].is_absent &&
        states[found].type.numel() == states[parameter].type.numel())
      return found;
  }
  return {};
}

std::string gradients_not_finite(World& world, const StateAccess& access,
                                 std::span<const TensorPiece> pieces) {
  std::vector<std::string> bad;
  for (const TensorPiece& piece : pieces) {
    if (piece.kind != StateKind::kParameter || piece.numel() == 0) continue;
    const StateId gradient = gradient_of(access.states(), piece.state);
    if (gradient.valid() && !is_finite(access, gradient, piece.offset, piece.numel()))
      bad.push_back(piece.tensor);
  }
  std::string mine;
  if (!bad.empty()) {
    mine = bad.back();
    if (bad.size() > 1) mine += fmt::format(" and of {} before it in the model", bad.size() - 1);
    mine += "\n" + std::string(world.flights().host);
  }
  const auto all = world.all_gather_text(mine);
  std::map<std::string, std::vector<std::string>> ranks;  // by text
  std::vector<std::string> order;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const auto split = all[rank].find('\n');
    const std::string text = all[rank].substr(0, split);
    const std::string host = all[rank].substr(split + 1);
    if (ranks[text].empty()) order.push_back(text);
    ranks[text].push_back(fmt::format("{}{}{}", rank, host.empty() ? "" : " ", host));
  }
  std::vector<std::string> kinds;
  for (const std::string& text : order) {
    if (kinds.size() == kMostKinds) break;
    kinds.push_back(all.size() == 1
                        ? text
                        : fmt::format("{} (rank{} {})", text, ranks[text].size() == 1 ? "" : "s",
                                      fmt::join(ranks[text], ", ")));
  }
  if (kinds.empty()) return "";
  return fmt::format(": the gradients of {} are not finite", fmt::join(kinds, "; of "));
}

}  // namespace tokamak
