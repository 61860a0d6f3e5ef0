// Collectives on device memory by NCCL.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>

#ifdef TOK_HIP
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif

#include "tokamak/comm/flight.h"
#include "tokamak/comm/host_communicator.h"
#include "tokamak/gpu/vendor.h"

namespace tokamak::gpu {

/// Throws SystemError "CALL: TEXT" with what NCCL adds to it.
void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm = nullptr);

#define TOK_NCCL(call) ::tokamak::gpu::check_nccl((call), #call)

/// Calls are recorded, then enqueued; `poll`, from another thread, learns which have ended. One
/// thread at a time calls collectives.
class NcclCommunicator final : public Communicator {
 public:
  /// Takes `comm`, which is null for a group of one: that only copies. The page outlives this.
  NcclCommunicator(HostGroup group, ncclComm_t comm, FlightPage& page);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override;

  int rank() const override { return group_.rank; }

  int size() const override { return static_cast<int>(group_.world_ranks.size()); }

  /// Called first when this ends.
  void at_end(std::function<void()> hook) { at_end_ = std::move(hook); }

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

  struct Progress {
    bool has_moved = false;  ///< a call has ended since the last poll
    bool is_open = false;    ///< a call has not ended
  };

  /// Puts ended calls into the flight record. From one thread, any.
  Progress poll();

  /// NCCL's own word on what went wrong in the background; "" if nothing did. From any thread.
  std::string find_error() const;

  /// Ends the kernels under way; later calls throw SystemError(why). From any thread.
  void abort(const std::string& why);

 private:
  /// Ends of the newest calls are known one by one; that of an older one with a later one's.
  static constexpr uint64_t kEvents = 128;

  using Enqueue = std::function<ncclResult_t(cudaStream_t)>;

  void call(CollectiveKind kind, DType dtype, int64_t count, CommStream stream,
            const Enqueue& enqueue);
  /// `slice(s)` enqueues slice s of a call, which NCCL joins into one launch.
  static ncclResult_t group(int64_t slices, const std::function<ncclResult_t(int64_t)>& slice);
  /// Of a group of one or of this rank's own part.
  static ncclResult_t copy(const void* in, void* out, int64_t bytes, cudaStream_t stream);
  static void count_traffic(Traffic& traffic, int64_t bytes);

  HostGroup group_;
  ncclComm_t comm_;
  FlightPage* page_;
  FlightLane* lane_;
  std::array<cudaEvent_t, kEvents> ends_{};
  std::atomic<uint64_t> recorded_ = 0;  ///< calls whose events are in their streams
  uint64_t ended_ = 0;                  ///< of them; the polling thread's
  std::string why_;                     ///< written before is_aborted_
  std::atomic<bool> is_aborted_ = false;
  std::function<void()> at_end_;
  int errors_;
};

}  // namespace tokamak::gpu
