#include "tokamak/models/parameters.h"

#include "tokamak/ops/elementwise/cast.h"

namespace tokamak {

Value Parameters::weight(const std::string& name, Dims dims, Axes axes, Init init) {
  if (const auto it = by_name_.find(name); it != by_name_.end()) return it->second;
  StateDecl decl{.name = name,
                 .type = {.dtype = master_, .dims = std::move(dims)},
                 .kind = StateKind::kParameter,
                 .axes = std::move(axes),
                 .init = init,
                 .block = graph_.label.block,
                 .module = graph_.label.module};
  Parameter parameter{.state = graph_.states().declare_once(decl)};
  if (master_ != compute_ && has_copies_) {
    decl.name = "copy." + name;
    decl.type.dtype = compute_;
    decl.kind = StateKind::kCopy;
    parameter.copy = graph_.states().declare_once(decl);
  }
  parameter.compute = compute_value(parameter);
  all_.push_back(parameter);
  by_name_[name] = parameter.compute;
  return parameter.compute;
}

Value Parameters::compute_value(const Parameter& parameter) {
  Label label = graph_.label;
  label.phase = Phase::kUnshard;
  const LabelScope scope(graph_, label);
  if (parameter.copy.valid()) return graph_.read(parameter.copy);
  const Value master = graph_.read(parameter.state);
  if (master_ == compute_) return master;
  return graph_.apply(Cast{.dtype = compute_}, {master});
}

}  // namespace tokamak
