#include "tokamak/graph/state.h"

#include "tokamak/core/error.h"

namespace tokamak {

StateId StateTable::declare(StateDecl decl) {
  const auto index = size();
  const bool is_new = by_name_.emplace(decl.name, index).second;
  TOK_CHECK(is_new, "State {} is declared twice", decl.name);
  decls_.push_back(std::move(decl));
  return {index};
}

StateId StateTable::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? StateId{} : StateId{it->second};
}

StateId StateTable::declare_once(const StateDecl& decl) {
  const StateId known = find(decl.name);
  if (!known.valid()) return declare(decl);
  TOK_CHECK((*this)[known].type == decl.type, "State {}: {} and {}", decl.name,
            to_string((*this)[known].type), to_string(decl.type));
  return known;
}

std::vector<StateId> StateTable::of_kind(StateKind kind) const {
  std::vector<StateId> ids;
  for (int32_t i = 0; i < size(); ++i) {
    if (decls_[i].kind == kind) ids.push_back({i});
  }
  return ids;
}

}  // namespace tokamak
