// What ranks say to each other. One Communicator is one group of ranks on one stream; NCCL, MPI and
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

/// A device's queue of work: null for a CPU stream, which is the calling thread; a cudaStream_t
/// for NCCL. Calls on a CPU stream return when their part is done; on a device they are enqueued.
using CommStream = void*;

/// All members call the same functions in the same order with the same counts and dtypes; a
/// difference, a member's death or a time-out ends the job with a line that says who and where
/// (SystemError in tests). On host memory sums are made in rank order, in fp32 for 16-bit elements
/// and in the elements' own type otherwise, so that transports agree bit for bit; NCCL has its own
/// order and rounds 16-bit sums at each hop. `count` counts elements.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// out[r * count + i] = member r's in[i]. `in` may be out + rank * count.
  void all_gather(const void* in, void* out, int64_t count, DType dtype, CommStream stream) {
    all_gather_slices(in, out, 1, count, dtype, stream);
  }

  /// out[i] = sum over members of in[rank * count + i]. `out` may be in + rank * count.
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, CommStream stream) {
    reduce_scatter_slices(in, out, 1, count, dtype, stream);
  }

  /// The same for `slices` pieces of `count` one after the other, as one call: out[(s * n + r) *
  /// count + i] = member r's in[s * count + i]. In place for one slice only.
  virtual void all_gather_slices(const void* in, void* out, int64_t slices, int64_t count,
                                 DType dtype, CommStream stream) = 0;

  /// Likewise: out[s * count + i] = sum over members of in[(s * n + rank) * count + i].
  virtual void reduce_scatter_slices(const void* in, void* out, int64_t slices, int64_t count,
                                     DType dtype, CommStream stream) = 0;

  /// In place if `in` is `out`.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                          CommStream stream) = 0;

  /// out[r * count + i] = member r's in[rank * count + i]. Not in place.
  virtual void all_to_all(const void* in, void* out, int64_t count, DType dtype,
                          CommStream stream) = 0;

  /// `data` of member `root` to all.
  virtual void broadcast(void* data, int64_t count, DType dtype, int root, CommStream stream) = 0;

  /// To the member `to` and from the member `from`, at once; either may be -1 for neither.
  virtual void send_recv(const void* out, int to, void* in, int from, int64_t count, DType dtype,
                         CommStream stream) = 0;

  /// Bytes that this member has put on the wire, by the closed forms (all-gather and
  /// reduce-scatter (n-1) * count, all-reduce 2 (n-1)/n * count, all-to-all (n-1) * count, send
  /// count, broadcast count at the root), and calls made.
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
  std::byte* base = nullptr;  ///< null = they are not all in one piece of memory
  int64_t bytes = 0;
  /// A digest of `bytes` and of the offsets of each call: equal on two ranks if those are.
  uint64_t layout = 0;
};

/// All ranks of a job, and the control plane: small host messages outside of plans. World functions
/// are collective and called from one thread of each rank.
class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// A communicator over `ranks` (world ranks, in group order, this rank among them). Collective
  /// over `ranks` only; every member asks for its groups in one agreed order. Two calls with the
  /// same ranks make two independent communicators, which different threads may use at once and
  /// which must not outlive the world.
  virtual std::unique_ptr<Communicator> make_group(const std::string& name,
                                                   std::span<const int> ranks) = 0;

  /// The same for a group whose calls are all-gathers beside compute, within `memory`. A transport
  /// may move them by other means than kernels.
  virtual std::unique_ptr<Communicator> make_gather_group(const std::string& name,
                                                          std::span<const int> ranks,
                                                          const GatheredMemory& memory) {
    static_cast<void>(memory);
    return make_group(name, ranks);
  }

  virtual void barrier() = 0;

  /// Every rank's text, by rank.
  virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;

  /// Rank `root`'s text.
  virtual std::string broadcast_text(const std::string& text, int root) = 0;

  /// The longest that a rank waits for a peer in any call from now on, also in those of its groups.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Ends the whole job at once with `code` after printing one line that names this rank and host;
  /// throws in the in-process world.
  virtual void abort(int code, const std::string& why) = 0;

  /// Where this rank's communicators record their calls; lives as long as the world.
  virtual FlightPage& flights() = 0;

  /// What this rank and, where they can be seen, its host's others have entered last: "\n  rank 0:
  /// in ..." for each. From any thread.
  virtual std::string describe_flights() const = 0;

  /// Why a rank of this host will never answer again ("rank 3 has failed"), or "". From any thread.
  virtual std::string find_fault() const = 0;
};

/// The world of one rank: nothing leaves it.
std::unique_ptr<World> make_single_world();

}  // namespace tokamak
