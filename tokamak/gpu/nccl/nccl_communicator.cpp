#include "tokamak/gpu/nccl/nccl_communicator.h"

#include <algorithm>
#include <exception>

#include "tokamak/core/error.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/device.h"

namespace tokamak::gpu {
namespace {

size_t as_size(int64_t n) {
  return static_cast<size_t>(n);
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kE4M3:  // gathered as bytes
    case DType::kE5M2:
    case DType::kU8:
      return ncclUint8;
    case DType::kU32:
      return ncclUint32;
    case DType::kU16:
    case DType::kBool:
      break;
  }
  fail_dtype(dtype);
}

}  // namespace

void check_nccl(ncclResult_t status, const char* call, ncclComm_t comm) {
  if (status == ncclSuccess) return;
  const std::string_view more = ncclGetLastError(comm);
  throw SystemError(
      fmt::format("{}: {}{}{}", call, ncclGetErrorString(status), more.empty() ? "" : ": ", more));
}

NcclCommunicator::NcclCommunicator(HostGroup group, ncclComm_t comm, FlightPage& page)
    : group_(std::move(group)),
      comm_(comm),
      page_(&page),
      lane_(page.add_lane(group_.name)),
      errors_(std::uncaught_exceptions()) {
  TOK_CHECK((comm_ == nullptr) == (size() == 1), "group \"{}\" of {}", group_.name, size());
  if (comm_ == nullptr) return;
  for (cudaEvent_t& end : ends_) TOK_CUDA(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
}

// An error in flight may have left calls that peers will never join.
NcclCommunicator::~NcclCommunicator() {
  if (at_end_) at_end_();
  if (comm_ == nullptr) return;
  if (!is_aborted_) {
    std::uncaught_exceptions() > errors_ ? ncclCommAbort(comm_) : ncclCommDestroy(comm_);
  }
  for (const cudaEvent_t end : ends_) cudaEventDestroy(end);
}

void NcclCommunicator::count_traffic(Traffic& traffic, int64_t bytes) {
  ++traffic.calls;
  traffic.bytes += bytes;
}

ncclResult_t NcclCommunicator::copy(const void* in, void* out, int64_t bytes, cudaStream_t stream) {
  if (in != out && bytes > 0)
    TOK_CUDA(cudaMemcpyAsync(out, in, as_size(bytes), cudaMemcpyDeviceToDevice, stream));
  return ncclSuccess;
}

void NcclCommunicator::call(CollectiveKind kind, DType dtype, int64_t count, CommStream stream,
                            const Enqueue& enqueue) {
  if (is_aborted_) throw SystemError(why_);
  lane_->enter(kind, dtype, count, page_->num_calls.fetch_add(1, std::memory_order_relaxed) + 1);
  const ncclResult_t status = enqueue(as_stream(stream));
  if (status != ncclSuccess) {
    check_nccl(status, fmt::format("{} of \"{}\"", name_of(kind), group_.name).c_str(), comm_);
  }
  if (comm_ == nullptr) return lane_->finish(1);
  const uint64_t number = recorded_.load(std::memory_order_relaxed) + 1;
  TOK_CUDA(cudaEventRecord(ends_[number % kEvents], as_stream(stream)));
  recorded_.store(number, std::memory_order_release);
}

NcclCommunicator::Progress NcclCommunicator::poll() {
  const uint64_t before = ended_;
  const uint64_t recorded = recorded_.load(std::memory_order_acquire);
  // Events may be reused meanwhile, but for later calls, so that no call counts as ended too early.
  uint64_t next = std::max(ended_ + 1, recorded > kEvents ? recorded - kEvents + 1 : 1);
  while (next <= recorded && cudaEventQuery(ends_[next % kEvents]) == cudaSuccess) ended_ = next++;
  if (ended_ > before) lane_->finish(ended_ - before);
  return {.has_moved = ended_ > before, .is_open = ended_ < recorded};
}

std::string NcclCommunicator::find_error() const {
  ncclResult_t error = ncclSuccess;
  if (comm_ == nullptr || is_aborted_) return "";
  const ncclResult_t status = ncclCommGetAsyncError(comm_, &error);
  if (status != ncclSuccess) error = status;
  if (error == ncclSuccess || error == ncclInProgress) return "";
  return fmt::format("group \"{}\": {}: {}", group_.name, ncclGetErrorString(error),
                     ncclGetLastError(comm_));
}

void NcclCommunicator::abort(const std::string& why) {
  if (comm_ == nullptr || is_aborted_) return;
  why_ = why;
  is_aborted_ = true;
  ncclCommAbort(comm_);
}

ncclResult_t NcclCommunicator::group(int64_t slices,
                                     const std::function<ncclResult_t(int64_t)>& slice) {
  if (slices == 1) return slice(0);
  TOK_NCCL(ncclGroupStart());
  ncclResult_t status = ncclSuccess;
  for (int64_t i = 0; i < slices && status == ncclSuccess; ++i) status = slice(i);
  const ncclResult_t ended = ncclGroupEnd();
  return status != ncclSuccess ? status : ended;
}

void NcclCommunicator::all_gather_slices(const void* in, void* out, int64_t slices, int64_t count,
                                         DType dtype, CommStream stream) {
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.all_gather, (size() - 1) * slices * bytes);
  call(CollectiveKind::kAllGather, dtype, slices * count, stream, [&](cudaStream_t s) {
    if (comm_ == nullptr) return copy(in, out, slices * bytes, s);
    return group(slices, [&](int64_t i) {
      const auto* piece = static_cast<const std::byte*>(in) + i * bytes;
      auto* pieces = static_cast<std::byte*>(out) + i * size() * bytes;
      return ncclAllGather(piece, pieces, as_size(bytes), ncclUint8, comm_, s);
    });
  });
}

void NcclCommunicator::reduce_scatter_slices(const void* in, void* out, int64_t slices,
                                             int64_t count, DType dtype, CommStream stream) {
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.reduce_scatter, (size() - 1) * slices * bytes);
  call(CollectiveKind::kReduceScatter, dtype, slices * count, stream, [&](cudaStream_t s) {
    if (comm_ == nullptr) return copy(in, out, slices * bytes, s);
    return group(slices, [&](int64_t i) {
      const auto* pieces = static_cast<const std::byte*>(in) + i * size() * bytes;
      auto* sum = static_cast<std::byte*>(out) + i * bytes;
      return ncclReduceScatter(pieces, sum, as_size(count), nccl_type(dtype), ncclSum, comm_, s);
    });
  });
}

void NcclCommunicator::all_reduce(const void* in, void* out, int64_t count, DType dtype,
                                  ReduceOp op, CommStream stream) {
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.all_reduce, 2 * (size() - 1) * bytes / size());
  call(CollectiveKind::kAllReduce, dtype, count, stream, [&](cudaStream_t s) {
    if (comm_ == nullptr) return copy(in, out, bytes, s);
    return ncclAllReduce(in, out, as_size(count), nccl_type(dtype),
                         op == ReduceOp::kSum ? ncclSum : ncclMax, comm_, s);
  });
}

void NcclCommunicator::all_to_all(const void* in, void* out, int64_t count, DType dtype,
                                  CommStream stream) {
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.all_to_all, (size() - 1) * bytes);
  call(CollectiveKind::kAllToAll, dtype, count, stream, [&](cudaStream_t s) {
    if (comm_ == nullptr) return copy(in, out, bytes, s);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    return ncclAlltoAll(in, out, as_size(bytes), ncclUint8, comm_, s);
#else
    const auto* send = static_cast<const std::byte*>(in);
    auto* receive = static_cast<std::byte*>(out);
    TOK_NCCL(ncclGroupStart());
    for (int member = 0; member < size(); ++member) {
      TOK_NCCL(ncclSend(send + member * bytes, as_size(bytes), ncclUint8, member, comm_, s));
      TOK_NCCL(ncclRecv(receive + member * bytes, as_size(bytes), ncclUint8, member, comm_, s));
    }
    return ncclGroupEnd();
#endif
  });
}

void NcclCommunicator::broadcast(void* data, int64_t count, DType dtype, int root,
                                 CommStream stream) {
  TOK_CHECK(root >= 0 && root < size(), "broadcast from {} of {}", root, size());
  const int64_t bytes = count * size_of(dtype);
  count_traffic(traffic_.broadcast, rank() == root && size() > 1 ? bytes : 0);
  call(CollectiveKind::kBroadcast, dtype, count, stream, [&](cudaStream_t s) {
    if (comm_ == nullptr) return ncclSuccess;
    return ncclBroadcast(data, data, as_size(bytes), ncclUint8, root, comm_, s);
  });
}

void NcclCommunicator::send_recv(const void* out, int to, void* in, int from, int64_t count,
                                 DType dtype, CommStream stream) {
  TOK_CHECK(to >= -1 && to < size() && from >= -1 && from < size(), "{} sends to {}, gets from {}",
            rank(), to, from);
  TOK_CHECK((to == rank()) == (from == rank()), "rank {} of \"{}\" sends to {}, gets from {}",
            rank(), group_.name, to, from);
  const int64_t bytes = count * size_of(dtype);
  const bool is_own = to == rank();
  count_traffic(traffic_.send, to >= 0 && !is_own ? bytes : 0);
  call(CollectiveKind::kSendRecv, dtype, count, stream, [&](cudaStream_t s) {
    if (is_own) return copy(out, in, bytes, s);
    TOK_NCCL(ncclGroupStart());
    if (to >= 0) TOK_NCCL(ncclSend(out, as_size(bytes), ncclUint8, to, comm_, s));
    if (from >= 0) TOK_NCCL(ncclRecv(in, as_size(bytes), ncclUint8, from, comm_, s));
    return ncclGroupEnd();
  });
}

}  // namespace tokamak::gpu
