#include "tokamak/price/task/low_precision.h"

#include <map>
#include <set>
#include <tuple>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

using Place = std::tuple<ArenaKind, int, int64_t>;

Place place_of(const Operand& o) {
  return {o.arena, o.slot_class, o.offset};
}

// Whether it gathers, at once or part by part around a ring.
bool gathers(const Cost& cost) {
  return cost.collective == Cost::Collective::kAllGather ||
         (cost.collective == Cost::Collective::kSendRecv && !cost.is_message);
}

}  // namespace

bool is_block_product(const Task& task, const Cost& cost) {
  return cost.kind == Cost::Kind::kGemm && task.label.block >= 0 &&
         task.label.phase != Phase::kUpdate;
}

LowPrecisionFlow low_precision_flow(std::span<const Task> tasks, std::span<const Cost> costs,
                                    bool gathers_low) {
  TOK_CHECK(tasks.size() == costs.size(), "{} costs of {} tasks", costs.size(), tasks.size());
  LowPrecisionFlow flow{.casts = std::vector<uint8_t>(tasks.size(), 0),
                        .casts_weights = std::vector<uint8_t>(tasks.size(), 0),
                        .is_low = std::vector<uint8_t>(tasks.size(), 0)};
  std::set<Place> cast_weights;
  std::map<Place, int> writer;              // the last task that wrote there; absent = before
  std::set<std::pair<Place, int>> is_cast;  // what lies there since that task
  const auto written_by = [&](const Operand& o) {
    const auto it = writer.find(place_of(o));
    return it == writer.end() ? -1 : it->second;
  };
  for (int t = 0; t < std::ssize(tasks); ++t) {
    const Task& task = tasks[t];
    if (is_block_product(task, costs[t])) {
      const auto product = costs[t].product;
      if (product == Cost::Product::kOutput && cast_weights.insert(place_of(task.in[1])).second)
        flow.casts_weights[t] = 1;
      const bool is_weight_gradient = product == Cost::Product::kWeightGradient;
      for (size_t k = 0; k < (is_weight_gradient ? 2U : 1U); ++k) {
        const int from = written_by(task.in[k]);
        if (gathers_low && from >= 0 && gathers(costs[from])) {
          flow.is_low[from] = 1;
        } else if (!is_weight_gradient && is_cast.emplace(place_of(task.in[k]), from).second) {
          flow.casts[t] = 1;
        }
      }
    }
    for (const Operand& o : task.out) writer[place_of(o)] = t;
  }
  return flow;
}

}  // namespace tokamak::price
