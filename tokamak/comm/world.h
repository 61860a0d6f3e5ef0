// The world that the launcher of this process asks for.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/launch_environment.h"

namespace tokamak {

struct WorldOptions {
  /// The longest wait for a peer; World::set_timeout changes it.
  std::chrono::milliseconds timeout{300'000};
};

/// Connects this process with its peers; the world of one rank does not use MPI. The call is
/// collective over all ranks and made once per process; the world must outlive its communicators.
/// Throws Error where there are more ranks and this program was built without MPI, where MPI sees
/// another number of ranks than the environment gives, or where it cannot connect them.
std::unique_ptr<World> make_world(const LaunchEnvironment& environment, WorldOptions options = {});

/// Makes the world of one rank with its flight record in a file of `folder`, for a launcher to
/// read.
std::unique_ptr<World> make_single_world(const std::filesystem::path& folder);

/// Returns "rank 3 on node4: " if this process is one of several that MPI has connected, else "".
std::string connected_rank();

/// Ends all ranks with exit code `code` if this process is one of several that MPI has connected;
/// else returns. A program that an error stops calls it at its end.
void abort_ranks(int code);

}  // namespace tokamak
