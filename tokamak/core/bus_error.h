// A mapped file that is cut while it is read ends the process by SIGBUS; here it gets its line.
#pragma once

#include <cstddef>
#include <span>

namespace tokamak {

/// Remembers a mapping by the name of its file until it is forgotten; beyond 1024 mappings at once
/// the line has no name.
void remember_mapping(std::span<const std::byte> bytes, const char* name);
void forget_mapping(std::span<const std::byte> bytes);

/// From here on a read beyond the end of a mapped file, or one that the disk fails, ends the
/// process with one line on standard error and ExitCode::kTryAgain.
void report_bus_errors();

}  // namespace tokamak
