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

/// Throws SystemError "CALL: TEXT", with NCCL's last error message, unless `status` is success.
void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm = nullptr);

#define TOK_NCCL(call) ::tokamak::gpu::check_nccl((call), #call)

/// Records calls, then enqueues them; `poll`, from another thread, finds which have ended. One
/// thread at a time calls collectives.
class NcclCommunicator final : public Communicator {
 public:
  /// Takes over `comm`, null for a group of one rank (it only copies). The page must outlive this.
  NcclCommunicator(HostGroup group, ncclComm_t comm, FlightPage& page);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override;

  int rank() const override { return group_.rank; }

  int size() const override { return static_cast<int>(group_.world_ranks.size()); }

  /// Sets a function that the destructor calls first.
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
    bool has_moved = false;  ///< whether a call has ended since the last poll
    bool is_open = false;    ///< whether a call has not ended
  };

  /// Puts ended calls into the flight record. Only one thread, whichever it is, may call it.
  Progress poll();

  /// Returns NCCL's message on what went wrong in the background; "" if nothing did. Any thread may
  /// call it.
  std::string find_error() const;

  /// Ends the running kernels; later calls throw SystemError(why). Any thread may call it.
  void abort(const std::string& why);

 private:
  /// The ends of the newest kEvents calls are seen one by one; an older one's with a later call's.
  static constexpr uint64_t kEvents = 128;

  using Enqueue = std::function<ncclResult_t(cudaStream_t)>;

  void call(CollectiveKind kind, DType dtype, int64_t count, CommStream stream,
            const Enqueue& enqueue);
  /// Calls slice(s) to enqueue each slice s of a call; NCCL joins them into one launch.
  static ncclResult_t group(int64_t slices, const std::function<ncclResult_t(int64_t)>& slice);
  /// Copies for a group of one rank, or this rank's own part.
  static ncclResult_t copy(const void* in, void* out, int64_t bytes, cudaStream_t stream);
  static void count_traffic(Traffic& traffic, int64_t bytes);

  HostGroup group_;
  ncclComm_t comm_;
  FlightPage* page_;
  FlightLane* lane_;
  std::array<cudaEvent_t, kEvents> ends_{};
  std::atomic<uint64_t> recorded_ = 0;  ///< calls whose events are in their streams
  uint64_t ended_ = 0;                  ///< those that have ended; used by the polling thread only
  std::string why_;                     ///< written before is_aborted_
  std::atomic<bool> is_aborted_ = false;
  std::function<void()> at_end_;
  int errors_;
};

}  // namespace tokamak::gpu
