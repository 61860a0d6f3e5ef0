// Which values share storage: a view uses the storage of another value, a donation takes it over.
#pragma once

#include "tokamak/plan/storages.h"

namespace tokamak {

/// Numbers nodes by segment and in task order.
void number_nodes(Buffers& b);

/// Finds the last use of each value in task order, looking through views.
void find_last_uses(Buffers& b);

/// Gives every value a storage, new or taken over. Throws Bug if bytes of a value are read after a
/// later node has written over them.
void place_values(Buffers& b);

}  // namespace tokamak
