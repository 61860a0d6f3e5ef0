// Communication between ranks. One Communicator is one group of ranks on one stream; NCCL, MPI and
// in-process threads implement it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokamak/core/dtype.h"
#include "tokamak/core/reduce_op.h"

namespace tokamak {

struct FlightPage;

/// A device's queue of work: a cudaStream_t for NCCL, or null for a CPU stream, which is the
/// calling thread. Calls on a CPU stream return when their part is done; on a device they are
/// enqueued.
using CommStream = void*;

/// All members call the same functions in the same order with the same counts and dtypes. A
/// difference, a member's death or a time-out ends the job with a line that says who and where
/// (SystemError in tests). On host memory, sums are made in rank order, in fp32 for 16-bit elements
/// and in the elements' own type otherwise, so that transports agree bit for bit. NCCL has its own
/// order and rounds 16-bit sums at each hop. `count` is in elements.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sets out[r * count + i] = member r's in[i]. `in` may be out + rank * count.
  void all_gather(const void* in, void* out, int64_t count, DType dtype, CommStream stream) {
    all_gather_slices(in, out, 1, count, dtype, stream);
  }

  /// Sets out[i] = sum over members of in[rank * count + i]. `out` may be in + rank * count.
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, CommStream stream) {
    reduce_scatter_slices(in, out, 1, count, dtype, stream);
  }

  /// Gathers `slices` consecutive pieces of `count` in one call: out[(s * n + r) * count + i] =
  /// member r's in[s * count + i]. It may be in place for one slice only.
  virtual void all_gather_slices(const void* in, void* out, int64_t slices, int64_t count,
                                 DType dtype, CommStream stream) = 0;

  /// Likewise sets out[s * count + i] = sum over members of in[(s * n + rank) * count + i].
  virtual void reduce_scatter_slices(const void* in, void* out, int64_t slices, int64_t count,
                                     DType dtype, CommStream stream) = 0;

  /// Reduces in place if `in` is `out`.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                          CommStream stream) = 0;

  /// Sets out[r * count + i] = member r's in[rank * count + i]. It must not be in place.
  virtual void all_to_all(const void* in, void* out, int64_t count, DType dtype,
                          CommStream stream) = 0;

  /// Sends the `data` of member `root` to all.
  virtual void broadcast(void* data, int64_t count, DType dtype, int root, CommStream stream) = 0;

  /// Sends to member `to` and receives from member `from` concurrently; -1 stands for no member.
  virtual void send_recv(const void* out, int to, void* in, int from, int64_t count, DType dtype,
                         CommStream stream) = 0;

  /// The calls of this member and the bytes that it has sent by the closed forms (all-gather and
  /// reduce-scatter (n-1) * count, all-reduce 2 (n-1)/n * count, all-to-all (n-1) * count, send
  /// count, broadcast count at the root).
  struct Traffic {
    int64_t calls = 0;
    int64_t bytes = 0;
  };

  struct TrafficByKind {
    Traffic all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, send;
  };

  const TrafficByKind& traffic() const { return traffic_; }

 protected:
  TrafficByKind traffic_;
};

/// Where the all-gathers of a group read and write.
struct GatheredMemory {
  std::vector<std::span<std::byte>> arenas;  ///< none = the group does not gather so
  /// A digest of the arenas' sizes and of the offsets of each call, which two ranks can compare.
  uint64_t layout = 0;
};

/// All ranks of a job, and the control plane, which carries small host messages outside of plans.
/// World functions are collective and called from one thread of each rank.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Makes a communicator over `ranks` (world ranks, in group order, this rank among them). The
  /// call is collective over `ranks` only, and every member asks for its groups in one agreed
  /// order. Two calls with the same ranks make two independent communicators, which different
  /// threads may use concurrently and which must not outlive the world.
  virtual std::unique_ptr<Communicator> make_group(const std::string& name,
                                                   std::span<const int> ranks) = 0;

  /// Does the same for a group whose calls are all-gathers concurrent with compute, within
  /// `memory`. A transport may perform them without kernels.
  virtual std::unique_ptr<Communicator> make_gather_group(const std::string& name,
                                                          std::span<const int> ranks,
                                                          const GatheredMemory& memory) {
    static_cast<void>(memory);
    return make_group(name, ranks);
  }

  /// Does the same for a group whose calls are sends and receives that may wait for their peer
  /// during compute. A transport may leave them few of the device's multiprocessors.
  virtual std::unique_ptr<Communicator> make_message_group(const std::string& name,
                                                           std::span<const int> ranks) {
    return make_group(name, ranks);
  }

  virtual void barrier() = 0;

  /// Returns every rank's text, by rank.
  virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;

  /// Returns rank `root`'s text.
  virtual std::string broadcast_text(const std::string& text, int root) = 0;

  /// Sets how long a rank waits for a peer in any later call, including those of its groups.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Ends the whole job at once with `code` after printing one line that names this rank and host;
  /// throws in the in-process world.
  virtual void abort(int code, const std::string& why) = 0;

  /// Returns the page where this rank's communicators record their calls. It lives as long as the
  /// world.
  virtual FlightPage& flights() = 0;

  /// Returns what this rank and, if visible, the other ranks of its host have entered last:
  /// "\n  rank 0: in ..." for each. Any thread may call it.
  virtual std::string describe_flights() const = 0;

  /// Returns why a rank of this host will never answer again ("rank 3 has failed"), or "". Any
  /// thread may call it.
  virtual std::string find_fault() const = 0;
};

/// Makes the world of one rank, which nothing leaves.
std::unique_ptr<World> make_single_world();

}  // namespace tokamak
