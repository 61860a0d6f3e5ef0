#include "tokamak/parallel/matmuls/float8_stats.h"

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/float8/amax_history.h"
#include "tokamak/ops/float8/code_counts.h"
#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak {
namespace {

// This rank's own figures; windows of the first carry the names of sites.
constexpr std::string_view kOwnCounts = "fp8.own_counts";
constexpr std::string_view kOwnGreatest = "fp8.own_greatest";

// The parts of a row: an operand's greatest magnitude and its greatest inverse scale.
constexpr int kNumGreatest = 2;

TensorType figures_type(std::string_view name, int64_t sites) {
  const bool counts = name == kOwnCounts || name == kFloat8Counts;
  return {.dtype = counts ? DType::kF64 : DType::kF32,
          .dims = {sites, counts ? CodeCounts::kNumCounts : kNumGreatest}};
}

}  // namespace

Float8Stats::Float8Stats(const Graph& from, const Float8Recipe& recipe) : recipe_(recipe) {
  if (!recipe.counts_codes || !has_optimizer(from)) return;
  for (const auto& [block, names] : float8_modules(from)) {
    for (const std::string& module : names) {
      for (const Float8Role role : {Float8Role::kX, Float8Role::kW, Float8Role::kG}) {
        const std::string site = float8_site(recipe_, block, module, role);
        if (row_of_.emplace(site, std::ssize(sites_)).second) sites_.push_back(site);
      }
    }
  }
  for (const std::string_view name : {kOwnCounts, kOwnGreatest}) {
    if (!sites_.empty())
      from.states().declare_once({.name = std::string(name),
                                  .type = figures_type(name, std::ssize(sites_)),
                                  .kind = StateKind::kBuffer});
  }
}

Value Float8Stats::window(Graph& to, std::string_view of, const std::string& site) const {
  const StateDecl& whole = to.states()[to.states().find(of)];
  const int64_t columns = whole.type.dims[1];
  StateDecl window;
  window.name = fmt::format("{}.{}", of, site);
  window.kind = whole.kind;
  window.type = {.dtype = whole.type.dtype, .dims = {columns}};
  window.window_of = to.states().find(of);
  window.window_begin = row_of_.at(site) * columns;
  return to.read(to.states().declare_once(window));
}

void Float8Stats::count(Graph& to, const std::string& module, Float8Role role, Value codes,
                        Value inverse, ScaleGrid grid, Value amax) {
  if (sites_.empty() || !counted_.insert(codes).second) return;
  const std::string site = float8_site(recipe_, to.label.block, module, role);
  const auto [at, is_first] = so_far_.try_emplace(site);
  auto& [counts, greatest] = at->second;
  if (is_first) {
    counts = window(to, kOwnCounts, site);
    greatest = window(to, kOwnGreatest, site);
  }
  const auto mode = is_first ? AccumulateMode::kFirstMicrobatch : AccumulateMode::kAlways;
  const std::vector<Value> made = to.add(CodeCounts{.grid = grid}, {codes, inverse});
  to.accumulate(made[0], counts, mode);
  StageMaxima stage{.row_of = {0, 1}};
  std::vector<Value> maxima{made[1], made[2]};
  if (amax.valid()) {
    stage.row_of.push_back(0);
    maxima.push_back(amax);
  }
  const Value staged = to.apply(std::move(stage), std::move(maxima));
  to.accumulate(staged, greatest, mode);
  counts = made[0];
  greatest = staged;
}

void Float8Stats::finish(Graph& to, const CommGroup& replicas) {
  if (sites_.empty()) return;
  for (const std::string& site : sites_)
    TOK_CHECK(so_far_.contains(site), "no codes of {} are counted", site);
  const LabelScope scope(to, {.phase = Phase::kUpdate});
  publish(to, kOwnCounts, kFloat8Counts, ReduceOp::kSum, replicas);
  publish(to, kOwnGreatest, kFloat8Greatest, ReduceOp::kMax, replicas);
}

void Float8Stats::publish(Graph& to, std::string_view from, std::string_view name, ReduceOp op,
                          const CommGroup& replicas) const {
  const TensorType type = figures_type(name, std::ssize(sites_));
  const StateId result = to.states().declare_once(
      {.name = std::string(name), .type = type, .kind = StateKind::kResult});
  Value all = to.read(to.states().find(from));
  if (replicas.size > 1) all = to.apply(AllReduce{.group = replicas, .op = op}, {all});
  const Value copy = to.apply(Accumulate{.dtype = type.dtype}, {all});
  to.accumulate(copy, to.read(result), AccumulateMode::kFirstMicrobatch);
}

std::vector<std::string> float8_sites(const StateTable& states) {
  const StateId own = states.find(kOwnCounts);
  std::map<int64_t, std::string> by_row;
  for (int32_t i = 0; own.valid() && i < states.size(); ++i) {
    const StateDecl& window = states[{i}];
    if (window.window_of == own)
      by_row[window.window_begin] = window.name.substr(kOwnCounts.size() + 1);
  }
  std::vector<std::string> sites;
  sites.reserve(by_row.size());
  for (auto& [begin, site] : by_row) sites.push_back(std::move(site));
  return sites;
}

}  // namespace tokamak
