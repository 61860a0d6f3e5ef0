#include "tokamak/ops/float8/quantize_ranges.h"

#include <fmt/format.h>

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

const std::vector<QuantizedRange> kAligned{{0, 256, 1}, {256, 1280, 0}, {1408, 9728, 1}};
const std::vector<QuantizedRange> kOdd{{3, 17, 0}, {17, 18, 2}, {40, 20001, 0}, {20500, 20500, 1}};

}  // namespace

template <>
OpCases cases_of<AmaxRanges>() {
  CasesOf<AmaxRanges> c;
  const auto add = [&](const std::string& name, const AmaxRanges& op, int64_t n) {
    // Without ranges it would read nothing.
    if (!op.ranges.empty()) c.good(name, op, {f32({n})}).check_gradient = false;
    auto& more = c.good(name + ", so far", op, {f32({n}), f32({op.num_sites})});
    more.check_gradient = false;
    more.fill = {{}, {.scale = 0.1, .shift = 3.0}};
    more.float_stays = {1};
  };
  add("whole words", {.ranges = kAligned, .num_sites = 3}, 9728);
  add("odd", {.ranges = kOdd, .num_sites = 3}, 20503);
  add("of bfloat16", {.ranges = kAligned, .num_sites = 2, .rounds_to = DType::kBF16}, 9856);
  add("without ranges", {.num_sites = 2}, 128);
  for (const float scale : {0.0F, 0.3F}) {
    auto& gated = c.good(fmt::format("gated by scales near {}", scale),
                         {.ranges = kOdd, .num_sites = 3, .is_gated = true},
                         {f32({20503}), f32({3}), f32({3, 5})});
    gated.check_gradient = false;
    gated.fill = {{}, {.scale = 0.1, .shift = 3.0}, {.scale = 0.0, .shift = scale}};
    gated.float_stays = {1, 2};
  }
  c.bad("a row without a history", {.num_sites = 1, .is_gated = true}, {f32({4}), f32({1, 1})});
  c.bad("a matrix", {.num_sites = 1}, {f32({4, 4})});
  c.bad("codes", {.num_sites = 1}, {{.dtype = DType::kE4M3, .dims = {4}}});
  c.bad("a range past the end", {.ranges = {{0, 5, 0}}, .num_sites = 1}, {f32({4})});
  c.bad("ranges that overlap", {.ranges = {{0, 3, 0}, {2, 4, 0}}, .num_sites = 1}, {f32({4})});
  c.bad("no such site", {.ranges = {{0, 3, 1}}, .num_sites = 1}, {f32({4})});
  c.bad("maxima of other sites", {.num_sites = 2}, {f32({4}), f32({3})});
  return c.cases;
}

template <>
OpCases cases_of<QuantizeRanges>() {
  CasesOf<QuantizeRanges> c;
  const auto add = [&](const std::string& name, const QuantizeRanges& op, int64_t n) {
    auto& one = c.good(name, op, {f32({n}), f32({3})});
    one.check_gradient = false;
    one.fill = {{}, {.scale = 0.3, .shift = 3.0}};
    one.float_stays = {1};
  };
  add("whole words", {.ranges = kAligned}, 9728);
  add("powers of two, of bfloat16",
      {.ranges = kAligned, .power_of_two = true, .rounds_to = DType::kBF16}, 9856);
  add("e5m2", {.ranges = kAligned, .format = DType::kE5M2}, 9728);
  add("odd", {.ranges = kOdd}, 20503);
  add("without ranges", {}, 128);
  for (const float scale : {0.0F, 2.0F}) {
    for (const std::vector<QuantizedRange>& ranges : {kAligned, kOdd}) {
      auto& one = c.good(
          fmt::format("{} ranges under delayed scales near {}", ranges.size(), scale),
          {.ranges = ranges, .rounds_to = DType::kBF16, .is_delayed = true, .has_amax = true},
          {f32({20503}), f32({3}), f32({3, 5})});
      one.check_gradient = false;
      one.fill = {{}, {.scale = 0.3, .shift = 3.0}, {.scale = 0.0, .shift = scale}};
      one.float_stays = {1, 2};
    }
  }
  c.bad("maxima without delayed scales", {.has_amax = true}, {f32({4}), f32({1})});
  c.bad("rows of other sites", {.is_delayed = true}, {f32({4}), f32({1}), f32({2, 5})});
  c.bad("no format", {.format = DType::kBF16}, {f32({4}), f32({1})});
  c.bad("no maxima", {}, {f32({4})});
  c.bad("no such site", {.ranges = {{0, 4, 1}}}, {f32({4}), f32({1})});
  return c.cases;
}

}  // namespace tokamak
