// The rank of a stage that has most to do or whose groups lie worst in the fabric. It sets the pace
// of a step.
#pragma once

#include <cstdint>

#include "tokamak/parallel/distribute.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak {

/// How causal attention is dealt to context-parallel ranks.
enum class CausalWork : uint8_t { kEven, kOfLastMost };

CausalWork causal_work(const DistributeOptions& options);

/// Returns the first of the ranks that attend most.
int first_of_busiest(const Mesh& mesh, CausalWork work);

/// Returns the place among the ranks of a stage, the same in all stages, where the groups take most
/// time over all stages. It is the first of equals, and the first place if no domain of the fabric
/// cuts a group. Domains of 72 hold no whole number of groups of 16, nodes of 8 none of 3.
int slowest_place(const Mesh& mesh, const price::Machine& machine, CausalWork work);

/// Returns the same for the attention that these options deal.
int slowest_place(const DistributeOptions& options, const price::Machine& machine);

}  // namespace tokamak
