// A mix of all collectives, to compare worlds bit for bit.
#pragma once

#include <string>

#include "tokamak/comm/communicator.h"

namespace tokamak {

/// Runs every collective on many sizes, types and groups, also from several threads at once; the
/// text holds a digest of what this rank got from each, and its traffic. Collective.
std::string run_battery(World& world);

}  // namespace tokamak
