// MPI as this program uses it: it moves bytes between pairs of ranks by non-blocking calls only,
// each under one lock. Only .cpp files include this header, as it includes mpi.h.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/host_communicator.h"
#include "tokamak/comm/world.h"

namespace tokamak {

/// A rank's connection with all others. Threads may use it concurrently: MPI is asked for
/// MPI_THREAD_SERIALIZED, which every MPI offers, and one lock guards the calls, all of them short.
/// A waiting thread drives everyone's progress, so no MPI thread competes with kernels.
class MpiSession {
 public:
  MpiSession(const LaunchEnvironment& environment, WorldOptions options);
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }

  int size() const { return size_; }

  FlightPage& page() const { return own_file_->page(); }

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  /// A communicator's members and the tag under which they exchange messages.
  struct Channel {
    MPI_Comm comm = MPI_COMM_NULL;
    int tag = 0;
    std::string group;
    std::vector<int> world_ranks;  ///< by member
  };

  /// Opens a channel over `ranks` after a bounded check that all of them ask for the same one.
  Channel open_channel(const std::string& group, std::span<const int> ranks);
  void close_channel(Channel& channel);

  /// Does ByteTransport::exchange() between the members of `channel`.
  void exchange(const Channel& channel, std::span<const ByteTransport::Send> sends,
                std::span<const ByteTransport::Receive> receives,
                const ByteTransport::Arrival& arrived);

  /// Stops all threads of the process from calling MPI again and throws SystemError(why).
  [[noreturn]] void fail(const std::string& why);

  bool has_failed() const { return has_failed_; }

  /// Returns why a rank of this host, or one of `peers`, will not answer, or "". Any thread may
  /// call it.
  std::string find_fault(std::span<const int> peers) const;

  /// Describes what the ranks of this host have entered last. Any thread may call it.
  std::string describe_flights() const;

  /// Ends MPI. REQUIRES: all ranks have finished.
  void finalize();

 private:
  class Pending;
  struct Waiting;

  void connect(const LaunchEnvironment& environment);
  /// Finds the ranks of this host and opens their flight files.
  void open_flights();
  void check(int code, const char* call);
  /// Throws what a thread of this rank has failed of first.
  void check_running() const;
  void check_hellos(const Channel& channel);
  void start(const Channel& channel, std::span<const ByteTransport::Send> sends,
             std::span<const ByteTransport::Receive> receives, Pending& pending);
  /// Returns the requests that have ended since the last call.
  std::span<const int> test(Pending& pending);
  /// Throws if this wait for `peers` cannot succeed because a rank of this host is dead, a peer is
  /// leaving, or the time is up.
  void look_around(Waiting& waiting, std::span<const int> peers);

  std::mutex mutex_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool is_crowded_ = false;  ///< more ranks than cores on this host
  std::atomic<bool> has_failed_ = false;
  mutable std::mutex failure_mutex_;
  std::string failure_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::optional<FlightFile> own_file_;
  std::map<int, FlightFile> neighbours_;  ///< by world rank; the other ranks of this host
};

}  // namespace tokamak
