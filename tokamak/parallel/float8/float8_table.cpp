#include "tokamak/parallel/float8/float8_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/amax_history.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {
namespace {

constexpr std::string_view kPrefix = "fp8.";
constexpr std::string_view kTable = "fp8.table";
constexpr std::string_view kMaxima = "fp8.maxima";
constexpr std::string_view kWeights = "fp8.weights";
constexpr std::string_view kNoMaxima = "fp8.no_maxima";

std::string joint_name(const std::string& module) {
  if (module == "q_proj" || module == "k_proj" || module == "v_proj") return "qkv";
  if (module == "gate_proj" || module == "up_proj") return "gate_up";
  if (module == "o_proj") return "o";
  return module == "down_proj" ? "down" : module;
}

// Returns the maxima of parts of `values`.
std::vector<Value> fold(Graph& g, const std::vector<Value>& values) {
  std::vector<Value> folded;
  for (size_t at = 0; at < values.size(); at += StageMaxima::kMostInputs) {
    const size_t count = std::min(values.size() - at, size_t{StageMaxima::kMostInputs});
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(at);
    folded.push_back(g.apply(StageMaxima{.row_of = std::vector<int>(count)},
                             {begin, begin + static_cast<std::ptrdiff_t>(count)}));
  }
  return folded;
}

StateId declare_window(const Graph& g, std::string_view name, Dims dims, std::string_view of,
                       int64_t begin) {
  StateDecl window;
  window.name = name;
  window.kind = g.states()[g.states().find(of)].kind;
  window.type = {.dtype = DType::kF32, .dims = std::move(dims)};
  window.window_of = g.states().find(of);
  window.window_begin = begin;
  return g.states().declare_once(window);
}

}  // namespace

std::string float8_module(std::string_view weight) {
  const std::string_view name = weight.substr(0, weight.rfind('.'));
  const size_t dot = name.rfind('.');
  const std::string_view module = name.substr(dot + 1);
  // GPT-2 has a c_proj in attention and another in the MLP.
  if (module != "c_proj") return std::string(module);
  const std::string_view owner = name.substr(0, dot);
  return std::string(name.substr(owner.rfind('.') + 1));
}

std::map<int32_t, std::vector<std::string>> float8_modules(const Graph& graph) {
  std::map<int32_t, std::vector<std::string>> modules;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const auto* linear = graph.node(i).as<Linear>();
    if (linear != nullptr && linear->low_precision)
      modules[graph.node(i).label.block].push_back(linear->module);
  }
  return modules;
}

bool has_optimizer(const Graph& graph) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (graph.node(i).as<ClipFactor>() != nullptr) return true;
  }
  return false;
}

std::string float8_site(const Float8Recipe& recipe, int32_t block, const std::string& module,
                        Float8Role role) {
  constexpr std::string_view kRoles = "xwg";
  if (block < 0) return fmt::format("head.{}", kRoles[static_cast<size_t>(role)]);
  const bool is_joint = recipe.shares_scales || role == Float8Role::kX;
  return fmt::format("layers.{}.{}.{}", block, is_joint ? joint_name(module) : module,
                     kRoles[static_cast<size_t>(role)]);
}

Float8Table::Float8Table(const Graph& from, const Float8Recipe& recipe, bool has_scales)
    : recipe_(recipe), has_scales_(has_scales) {
  if (recipe.history_len == 0) return;
  has_update_ = has_optimizer(from);
  const auto modules = float8_modules(from);
  const auto add_rows = [&](int32_t block, const std::vector<std::string>& names, Float8Role role) {
    for (const std::string& module : names) {
      const std::string name = name_of(block, module, role);
      if (row_of_.emplace(name, std::ssize(rows_)).second) rows_.push_back(name);
    }
  };
  for (const auto& [block, names] : modules) add_rows(block, names, Float8Role::kW);
  num_weights_ = std::ssize(rows_);
  for (const auto& [block, names] : modules) {
    add_rows(block, names, Float8Role::kX);
    add_rows(block, names, Float8Role::kG);
  }
  if (!has_update_ || rows_.empty()) return;
  const auto sites = std::ssize(rows_);
  from.states().declare_once(
      {.name = std::string(kTable),
       .type = {.dtype = DType::kF32, .dims = {sites, 1 + recipe.history_len}},
       .kind = StateKind::kMoment});
  from.states().declare_once({.name = std::string(kMaxima),
                              .type = {.dtype = DType::kF32, .dims = {sites}},
                              .kind = StateKind::kBuffer});
}

std::string Float8Table::name_of(int32_t block, const std::string& module, Float8Role role) const {
  return fmt::format("fp8.{}", float8_site(recipe_, block, module, role));
}

StateId Float8Table::window_of(const Graph& to, const std::string& name) const {
  if (const StateId known = to.states().find(name); known.valid()) return known;
  TOK_CHECK(has_update_, "validation reads {}, which training has not", name);
  const int64_t columns = 1 + recipe_.history_len;
  return declare_window(to, name, {columns}, kTable, row_of_.at(name) * columns);
}

Value Float8Table::row(Graph& to, const std::string& module, Float8Role role) const {
  return to.read(window_of(to, name_of(to.label.block, module, role)));
}

Value Float8Table::weight_rows(Graph& to) const {
  return to.read(declare_window(to, kWeights, {num_weights_, 1 + recipe_.history_len}, kTable, 0));
}

int64_t Float8Table::weight_row(const Graph& to, int32_t block, const std::string& module) const {
  const StateId row = window_of(to, name_of(block, module, Float8Role::kW));
  return to.states()[row].window_begin / (1 + recipe_.history_len);
}

Value Float8Table::no_maxima(Graph& to, int64_t count) const {
  TOK_CHECK(has_scales_, "maxima are wanted where rows have no scales");
  to.states().declare_once(
      {.name = std::string(kNoMaxima),
       .type = {.dtype = DType::kF32, .dims = {std::max(num_weights_, int64_t{1})}},
       .kind = StateKind::kBuffer});
  return to.read(declare_window(to, fmt::format("{}.{}", kNoMaxima, count), {count}, kNoMaxima, 0));
}

void Float8Table::stage(Graph& to, const std::string& module, Float8Role role, Value amax) {
  flush_if(to, [&](const Label& label) { return label.block != to.label.block; });
  auto at = std::find_if(pending_.begin(), pending_.end(),
                         [&](const Pending& p) { return p.label == to.label; });
  if (at == pending_.end()) at = pending_.insert(at, {.label = to.label, .amax = {}});
  at->amax[row_of_.at(name_of(to.label.block, module, role))].push_back(amax);
}

void Float8Table::end_forward(Graph& to, const Label& label) {
  if (label.phase != Phase::kBackward) return;
  flush_if(to, [](const Label& of) { return of.phase == Phase::kForward; });
}

template <class Ends>
void Float8Table::flush_if(Graph& to, const Ends& ends) {
  std::vector<Pending> rest;
  for (Pending& p : std::exchange(pending_, {})) {
    if (ends(p.label)) {
      flush(to, p);
    } else {
      rest.push_back(std::move(p));
    }
  }
  pending_ = std::move(rest);
}

// Emits a node for each run of neighbouring rows.
void Float8Table::flush(Graph& to, Pending& pending) {
  const LabelScope scope(to, pending.label);
  constexpr size_t kMost = 32;  // of one row
  for (auto& [row, values] : pending.amax) {
    while (values.size() > kMost) values = fold(to, values);
  }
  constexpr int64_t kMostRows = StageMaxima::kMostInputs / kMost;
  for (auto at = pending.amax.begin(); at != pending.amax.end();) {
    const int first = at->first;
    StageMaxima op;
    std::vector<Value> in;
    int64_t rows = 0;
    for (; at != pending.amax.end() && at->first == first + rows && rows < kMostRows;
         ++at, ++rows) {
      op.row_of.insert(op.row_of.end(), at->second.size(), static_cast<int>(rows));
      in.insert(in.end(), at->second.begin(), at->second.end());
    }
    const std::string name = fmt::format("{}.{}", kMaxima, first);
    TOK_CHECK(staged_.insert(first).second, "{} is staged twice", rows_[first]);
    const Value into = to.read(declare_window(to, name, {rows}, kMaxima, first));
    to.accumulate(to.apply(std::move(op), std::move(in)), into, AccumulateMode::kFirstMicrobatch);
  }
}

Value Float8Table::take_maxima(Graph& to, Value sum, const CommGroup& replicas) {
  flush_if(to, [](const Label&) { return true; });
  if (rows_.empty()) return sum;
  const LabelScope scope(to, {.phase = Phase::kUpdate});
  maxima_ = to.read(to.states().find(kMaxima));
  if (replicas.size > 1)
    maxima_ = to.apply(AllReduce{.group = replicas, .op = ReduceOp::kMax}, {maxima_});
  const SumSquares nothing{.ranges = {{.end = std::ssize(rows_), .weight = 0.0}}};
  return accumulate_into(to, to.apply(nothing, {maxima_}), sum, AccumulateMode::kAlways);
}

void Float8Table::finish(Graph& to, Value factor) {
  if (rows_.empty()) return;
  const LabelScope scope(to, {.phase = Phase::kUpdate});
  AmaxHistory op{.margin = recipe_.margin,
                 .most_recent = recipe_.most_recent,
                 .power_of_two = recipe_.power_of_two};
  for (const std::string& row : rows_)
    op.largest.push_back(largest_of(row.back() == 'g' ? recipe_.gradient : DType::kE4M3));
  const auto out = to.add(std::move(op), {to.read(to.states().find(kTable)), maxima_, factor});
  const StateId count = to.states().declare_once({.name = std::string(kSaturatedSites),
                                                  .type = {.dtype = DType::kF64, .dims = {1}},
                                                  .kind = StateKind::kResult});
  to.accumulate(out[1], to.read(count), AccumulateMode::kFirstMicrobatch);
}

void set_scale_pieces(const StateTable& states, bool is_owner, std::vector<TensorPiece>& pieces) {
  std::erase_if(pieces, [](const TensorPiece& p) { return p.tensor.starts_with(kPrefix); });
  const StateId table = states.find(kTable);
  for (int32_t i = 0; table.valid() && i < states.size(); ++i) {
    const StateDecl& row = states[{i}];
    if (row.window_of != table || row.type.dims.size() > 1) continue;
    pieces.push_back({.tensor = row.name,
                      .type = row.type,
                      .kind = StateKind::kMoment,
                      .init = {},
                      .box_begin = Dims(row.type.dims.size(), 0),
                      .box_end = row.type.dims,
                      .end = row.type.numel(),
                      .state = table,
                      .offset = row.window_begin,
                      .is_owner = is_owner,
                      .is_delayed_scale = true});
  }
}

void require_saved_scales(const TensorPiece& piece, const TensorType& found,
                          const std::string& folder) {
  TOK_REQUIRE(found.dtype == piece.type.dtype && found.dims.size() == 1, "{}: {} is {}, wanted {}",
              folder, piece.tensor, to_string(found), to_string(piece.type));
  TOK_REQUIRE(found.dims == piece.type.dims,
              "quantize.linear.float8.amax_history_len = {}: {} has histories of {}; set that, or "
              "leave scales out with checkpoint.exclude_from_loading = [\"optimizer\"]",
              piece.type.dims[0] - 1, folder, found.dims[0] - 1);
}

std::string missing_scales_text() {
  return "float8: the checkpoint has no delayed scales, so the next step scales by its maxima";
}

}  // namespace tokamak
