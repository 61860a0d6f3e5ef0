// The rank of a stage that has most to do or whose groups lie worst in the fabric: a step goes at
// its pace.
#pragma once

#include <cstdint>

#include "tokamak/parallel/distribute.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak {

/// How causal attention is dealt to context-parallel ranks.
enum class CausalWork : uint8_t { kEven, kOfLastMost };

CausalWork causal_work(const DistributeOptions& options);

/// The first rank of those that attend most.
int first_of_busiest(const Mesh& mesh, CausalWork work);

/// Its place among the ranks of a stage, the same in all stages: where what its groups take in all
/// of them is most; the first of equals, and the first at all where no domain of the fabric cuts a
/// group. Domains of 72 hold no whole number of groups of 16, nodes of 8 none of 3.
int slowest_place(const Mesh& mesh, const price::Machine& machine, CausalWork work);

/// The same, of the attention that these options deal.
int slowest_place(const DistributeOptions& options, const price::Machine& machine);

}  // namespace tokamak
