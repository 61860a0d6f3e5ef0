#include "tokamak/models/parameters.h"

#include "tokamak/ops/cast.h"

namespace tokamak {

Value Parameters::weight(const std::string& name, Dims dims, Axes axes, Init init) {
  if (const auto it = by_name_.find(name); it != by_name_.end()) return it->second;
  const StateId id =
      graph_.states().declare_once({.name = name,
                                    .type = {.dtype = master_, .dims = std::move(dims)},
                                    .kind = StateKind::kParameter,
                                    .axes = std::move(axes),
                                    .init = init,
                                    .block = graph_.label.block,
                                    .module = graph_.label.module});
  Label label = graph_.label;
  label.phase = Phase::kUnshard;
  const LabelScope scope(graph_, label);
  const Value master = graph_.read(id);
  const Value compute =
      master_ == compute_ ? master : graph_.apply(Cast{.dtype = compute_}, {master});
  all_.push_back({.state = id, .compute = compute});
  by_name_[name] = compute;
  return compute;
}

}  // namespace tokamak
