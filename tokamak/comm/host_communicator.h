// Collectives on host memory over a transport that only moves bytes. All sums are computed here, so
// that threads and MPI agree bit for bit.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/flight.h"

namespace tokamak {

/// Moves bytes between the members of one group; messages from one member to another arrive in the
/// order sent. One thread at a time uses it.
class ByteTransport {
 public:
  struct Send {
    int to = 0;
    const std::byte* data = nullptr;
    int64_t bytes = 0;
  };

  /// `bytes` is the capacity; a message may be shorter.
  struct Receive {
    int from = 0;
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };

  virtual ~ByteTransport() = default;

  /// It is called with the index of a receive as soon as the message has arrived; it may throw.
  using Arrival = std::function<void(size_t)>;

  /// Starts all sends and receives and returns when all are done; then sent data may be
  /// overwritten. There is at most one send to and one receive from each other member, and none
  /// with itself. Throws SystemError when a peer has died or left, the job has failed, or the
  /// time-out has passed.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        const Arrival& arrived) = 0;

  /// Ends the job for all ranks because of a fault that this rank found; throws SystemError(why).
  [[noreturn]] virtual void fail(const std::string& why) = 0;
};

/// The variable that has every message's hash sent after it and compared; empty or absent: none is.
inline constexpr const char* kCheckMessagesVariable = "TOKAMAK_CHECK_MESSAGES";

/// The members of a group and this rank's place among them.
struct HostGroup {
  std::string name;
  std::vector<int> world_ranks;  ///< by member
  int rank = 0;
};

class HostCommunicator final : public Communicator {
 public:
  /// `transport` may be null for one member; `page` must outlive the communicator.
  HostCommunicator(HostGroup group, std::unique_ptr<ByteTransport> transport, FlightPage& page);

  int rank() const override { return group_.rank; }

  int size() const override { return static_cast<int>(group_.world_ranks.size()); }

  void all_gather_slices(const void* in, void* out, int64_t slices, int64_t count, DType dtype,
                         CommStream stream) override;
  void reduce_scatter_slices(const void* in, void* out, int64_t slices, int64_t count, DType dtype,
                             CommStream stream) override;
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  CommStream stream) override;
  void all_to_all(const void* in, void* out, int64_t count, DType dtype,
                  CommStream stream) override;
  void broadcast(void* data, int64_t count, DType dtype, int root, CommStream stream) override;
  void send_recv(const void* out, int to, void* in, int from, int64_t count, DType dtype,
                 CommStream stream) override;

  void barrier();

 private:
  using Send = ByteTransport::Send;
  using Receive = ByteTransport::Receive;

  /// The terms that all members must agree on, sent before the first bytes of each call.
  struct Call {
    CollectiveKind kind{};
    DType dtype{};
    ReduceOp op{};
    int32_t root = -1;
    int64_t slices = 1;
    int64_t count = 0;
    uint64_t number = 0;

    bool operator==(const Call&) const = default;
  };

  /// The range of elements that a member reduces.
  struct Slice {
    int64_t first = 0;
    int64_t count = 0;
  };

  class CallRecord;

  Call next_call(CollectiveKind kind, int64_t count, DType dtype);
  /// Makes the first exchange of a call: `call` goes with each message sent, and each message
  /// received must carry the same.
  void exchange_checked(const Call& call, std::span<const Send> sends,
                        std::span<const Receive> receives);
  /// Exchanges what both sides know the sizes of.
  void exchange_sized(std::span<const Send> sends, std::span<const Receive> receives);
  std::vector<uint64_t> hashes_of(std::span<const Send> sends) const;
  /// `hashes` are those of what was sent, before anything was received.
  void check_contents(std::span<const uint64_t> hashes, std::span<const Send> sends,
                      std::span<const Receive> receives);
  void check_same(const Call& mine, const Call& theirs, int member);
  std::string describe(const Call& call) const;

  /// Reduces all members' elements of this rank's piece into `out`; `pieces` holds each member's
  /// range of `in`.
  void reduce_pieces(const Call& call, const std::byte* in, std::span<const Slice> pieces,
                     std::byte* out);
  void all_reduce_whole(const Call& call, const std::byte* in, std::byte* out);
  /// Returns how many of `slices` pieces per member fit into staging and so are sent together.
  int64_t slices_at_once(int64_t slices, int64_t slice_bytes) const;
  /// Returns the n-1 other members, nearest above first.
  std::vector<int> others() const;
  void count_traffic(Traffic& traffic, int64_t bytes);

  HostGroup group_;
  std::unique_ptr<ByteTransport> transport_;
  FlightPage* page_;
  FlightLane* lane_;
  bool checks_messages_;
  uint64_t group_calls_ = 0;
  std::vector<uint64_t> sent_;      ///< send_recv calls by member
  std::vector<uint64_t> received_;  ///< likewise
  std::vector<std::byte> first_out_, first_in_, staging_, packed_;
};

}  // namespace tokamak
