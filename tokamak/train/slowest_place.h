// The rank of a stage that has most to do or whose groups lie worst in the fabric: a step goes at
// its pace.
#pragma once

#include <cstdint>

#include "tokamak/parallel/distribute.h"
#include "tokamak/price/machine.h"

namespace tokamak {

/// How causal attention is dealt to context-parallel ranks.
enum class CausalWork : uint8_t { kEven, kOfLastMost };

CausalWork causal_work(const DistributeOptions& options);

/// The first rank of those that attend most.
int first_of_busiest(const Mesh& mesh, CausalWork work);

/// Its place among the ranks of a stage (the same in all stages), by what its tensor-parallel and
/// its context-parallel group take, then those of data parallelism in the first stage; the first of
/// equals.
/// Domains of 72 hold no whole number of groups of 16: one of them lies in two racks. Nor do nodes
/// of 8 of groups of 3 owners.
int slowest_place(const Mesh& mesh, const price::Machine& machine, CausalWork work);

/// The same, of the attention that these options deal.
int slowest_place(const DistributeOptions& options, const price::Machine& machine);

}  // namespace tokamak
