// The CPU cores that this process may use, which may be fewer than the machine has.
#pragma once

#include <filesystem>

namespace tokamak {

/// Returns how many cores' time this process may take, at least 1: the cores of its affinity, or
/// what the CPU quota of a control group (versions 1 and 2) amounts to if that is less; a part of a
/// core does not count, since threads that share a quota wait for each other. Files are read below
/// `root`.
int usable_cores(const std::filesystem::path& root = "/");

}  // namespace tokamak
