// Which values share storage: views see that of another value, donations take it over.
#pragma once

#include "tokamak/plan/storages.h"

namespace tokamak {

/// Numbers nodes by segment and in task order.
void number_nodes(Buffers& b);

/// Finds the last use of each value in task order, looking through views.
void find_last_uses(Buffers& b);

/// Gives every value a storage, of its own or one that it takes over. Throws Bug if bytes of a
/// value are read after a later node has written over them.
void place_values(Buffers& b);

}  // namespace tokamak
