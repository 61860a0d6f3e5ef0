#include "tokamak/gpu/copy_lanes.h"

#include <algorithm>
#include <cstring>

#include "tokamak/gpu/check.h"

namespace tokamak::gpu {

CopyLanes::Lane::Lane() {
  TOK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (Part& part : parts) {
    TOK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&part.pinned), kPartBytes));
    TOK_CUDA(cudaEventCreateWithFlags(&part.copied, cudaEventDisableTiming));
  }
}

CopyLanes::Lane::~Lane() {
  for (const Part& part : parts) {
    cudaEventDestroy(part.copied);
    cudaFreeHost(part.pinned);
  }
  cudaStreamDestroy(stream);
}

class CopyLanes::Taken {
 public:
  explicit Taken(CopyLanes& all) : all_(all) {
    TOK_CUDA(cudaSetDevice(all.device_));
    std::unique_lock lock(all.mutex_);
    if (all.free_.empty() && all.lanes_.size() < kMost) {
      lane_ = all.lanes_.emplace_back(std::make_unique<Lane>()).get();
      return;
    }
    all.given_back_.wait(lock, [&] { return !all.free_.empty(); });
    lane_ = all.free_.back();
    all.free_.pop_back();
  }

  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  // A copy in flight would write to pinned memory that the next call uses.
  ~Taken() {
    cudaStreamSynchronize(lane_->stream);
    {
      const std::lock_guard lock(all_.mutex_);
      all_.free_.push_back(lane_);
    }
    all_.given_back_.notify_one();
  }

  Lane* operator->() const { return lane_; }

 private:
  CopyLanes& all_;
  Lane* lane_ = nullptr;
};

CopyLanes::~CopyLanes() = default;

void CopyLanes::prepare(int count) {
  TOK_CUDA(cudaSetDevice(device_));
  const std::lock_guard lock(mutex_);
  while (lanes_.size() < std::min(kMost, static_cast<size_t>(count)))
    free_.push_back(lanes_.emplace_back(std::make_unique<Lane>()).get());
}

void CopyLanes::pin(std::byte* host, int64_t bytes) {
  TOK_CUDA(cudaSetDevice(device_));
  if (cudaHostRegister(host, static_cast<size_t>(bytes), cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();  // it is no error of later calls
    return;
  }
  const std::lock_guard lock(mutex_);
  pinned_[host] = bytes;
}

void CopyLanes::unpin(std::byte* host) {
  const std::lock_guard lock(mutex_);
  if (pinned_.erase(host) > 0) cudaHostUnregister(host);
}

bool CopyLanes::is_pinned(const std::byte* host, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto after = pinned_.upper_bound(host);
  if (after == pinned_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return host + bytes <= begin + size;
}

void CopyLanes::read(std::byte* host, const std::byte* device, int64_t bytes) {
  const bool is_direct = is_pinned(host, bytes);
  const Taken lane(*this);
  if (is_direct) {
    TOK_CUDA(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                             lane->stream));
    TOK_CUDA(cudaStreamSynchronize(lane->stream));
    return;
  }
  const auto size_at = [&](int64_t at) {
    return static_cast<size_t>(std::min(kPartBytes, bytes - at));
  };
  const auto begin = [&](int64_t at) {
    if (at >= bytes) return;
    const Part& part = lane->parts[at / kPartBytes % 2];
    TOK_CUDA(
        cudaMemcpyAsync(part.pinned, device + at, size_at(at), cudaMemcpyDefault, lane->stream));
    TOK_CUDA(cudaEventRecord(part.copied, lane->stream));
  };
  begin(0);
  for (int64_t at = 0; at < bytes; at += kPartBytes) {
    begin(at + kPartBytes);
    const Part& part = lane->parts[at / kPartBytes % 2];
    TOK_CUDA(cudaEventSynchronize(part.copied));
    std::memcpy(host + at, part.pinned, size_at(at));
  }
}

void CopyLanes::write(std::byte* device, const std::byte* host, int64_t bytes) {
  const Taken lane(*this);
  for (int64_t at = 0; at < bytes; at += kPartBytes) {
    const auto size = static_cast<size_t>(std::min(kPartBytes, bytes - at));
    const Part& part = lane->parts[at / kPartBytes % 2];
    TOK_CUDA(cudaEventSynchronize(part.copied));
    std::memcpy(part.pinned, host + at, size);
    TOK_CUDA(cudaMemcpyAsync(device + at, part.pinned, size, cudaMemcpyDefault, lane->stream));
    TOK_CUDA(cudaEventRecord(part.copied, lane->stream));
  }
  TOK_CUDA(cudaStreamSynchronize(lane->stream));
}

}  // namespace tokamak::gpu
