#include "tokamak/gpu/device.h"

#include <algorithm>
#include <cstring>

#include "tokamak/core/error.h"
#include "tokamak/gpu/check.h"

namespace tokamak::gpu {
namespace {

constexpr int64_t kStageBytes = int64_t{2} << 20U;

cudaEvent_t as_event(DeviceEvent event) {
  return static_cast<cudaEvent_t>(event);
}

class CapturedGraph final : public DeviceGraph {
 public:
  CapturedGraph(cudaGraph_t graph, cudaStream_t stream) {
    TOK_CUDA(cudaGraphInstantiateWithFlags(&executable_, graph, 0));
    TOK_CUDA(cudaGraphUpload(executable_, stream));
  }

  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  ~CapturedGraph() override { cudaGraphExecDestroy(executable_); }

  void launch(DeviceStream stream) override {
    TOK_CUDA(cudaGraphLaunch(executable_, as_stream(stream)));
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

// Ends the stream's capture even if the work throws: later work of the stream must run.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    // Relaxed, as other threads query their events meanwhile and libraries may load code.
    TOK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  }

  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  ~Capture() {
    if (graph_ == nullptr && cudaStreamEndCapture(stream_, &graph_) != cudaSuccess)
      cudaGetLastError();  // or the next launch reports it
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  cudaGraph_t end() {
    TOK_CUDA(cudaStreamEndCapture(stream_, &graph_));
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

void fail_call(const char* call, const char* text) {
  throw SystemError(fmt::format("{}: {}", call, text));
}

void fail_dtype(DType dtype) {
  TOK_CHECK(false, "no GPU kernel for {}", name_of(dtype));
}

Device::Device(int index) : index_(index) {
  TOK_CUDA(cudaSetDevice(index));
  cudaDeviceProp properties{};
  TOK_CUDA(cudaGetDeviceProperties(&properties, index));
  arch_ = properties.major * 10 + properties.minor;
  num_multiprocessors_ = properties.multiProcessorCount;
  l2_bytes_ = properties.l2CacheSize;
  name_ = properties.name;
  for (Stage& stage : stages_) {
    TOK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&stage.data), kStageBytes));
    TOK_CUDA(cudaEventCreateWithFlags(&stage.done, cudaEventDisableTiming));
  }
}

Device::~Device() {
  gemm_library_.reset();
  for (const Stage& stage : stages_) {
    cudaEventDestroy(stage.done);
    cudaFreeHost(stage.data);
  }
  for (void* pinned : pinned_) cudaFreeHost(pinned);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

DeviceStream Device::stream(size_t n) {
  while (streams_.size() <= n) {
    int least = 0;
    int greatest = 0;
    TOK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = streams_.empty() ? least : greatest;  // stream 0 gives way to the others
    TOK_CUDA(
        cudaStreamCreateWithPriority(&streams_.emplace_back(), cudaStreamNonBlocking, priority));
  }
  return streams_[n];
}

DeviceEvent Device::make_event(bool is_timed) {
  TOK_CUDA(cudaEventCreateWithFlags(&events_.emplace_back(),
                                    is_timed ? cudaEventDefault : cudaEventDisableTiming));
  return events_.back();
}

void Device::record(DeviceEvent event, DeviceStream stream) {
  TOK_CUDA(cudaEventRecord(as_event(event), as_stream(stream)));
}

void Device::wait(DeviceStream stream, DeviceEvent event) {
  TOK_CUDA(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}

bool Device::has_happened(DeviceEvent event) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // or the next launch reports it
    return false;
  }
  TOK_CUDA(status);
  return true;
}

std::unique_ptr<DeviceGraph> Device::capture(DeviceStream stream,
                                             const std::function<void()>& work) {
  Capture capture(as_stream(stream));
  work();
  return std::make_unique<CapturedGraph>(capture.end(), as_stream(stream));
}

void Device::synchronize(DeviceEvent event) {
  TOK_CUDA(cudaEventSynchronize(as_event(event)));
}

void* Device::make_pinned(size_t bytes) {
  TOK_CUDA(cudaMallocHost(&pinned_.emplace_back(), bytes));
  return pinned_.back();
}

void Device::copy_to_pinned(void* pinned, const std::byte* device, size_t bytes) {
  TOK_CUDA(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, as_stream(stream(0))));
}

double Device::seconds_between(DeviceEvent begin, DeviceEvent end) {
  float ms = 0.0F;
  TOK_CUDA(cudaEventElapsedTime(&ms, as_event(begin), as_event(end)));
  return static_cast<double>(ms) / 1e3;
}

Device::Stage& Device::next_stage() {
  Stage& stage = stages_[next_stage_];
  next_stage_ = (next_stage_ + 1) % stages_.size();
  TOK_CUDA(cudaEventSynchronize(stage.done));
  return stage;
}

void Device::upload(std::byte* device, const std::byte* host, int64_t bytes) {
  const cudaStream_t compute = as_stream(stream(0));
  for (int64_t at = 0; at < bytes; at += kStageBytes) {
    const auto n = static_cast<size_t>(std::min(kStageBytes, bytes - at));
    const Stage& stage = next_stage();
    std::memcpy(stage.data, host + at, n);
    TOK_CUDA(cudaMemcpyAsync(device + at, stage.data, n, cudaMemcpyDefault, compute));
    TOK_CUDA(cudaEventRecord(stage.done, compute));
  }
}

void Device::clear(std::byte* device, int64_t bytes) {
  TOK_CUDA(cudaMemsetAsync(device, 0, bytes, as_stream(stream(0))));
}

void Device::download(std::byte* host, const std::byte* device, int64_t bytes) {
  const cudaStream_t compute = as_stream(stream(0));
  // One copy stays in flight while the host reads the previous one.
  const auto fetch = [&](int64_t at) -> const Stage* {
    const auto n = static_cast<size_t>(std::min(kStageBytes, bytes - at));
    const Stage& stage = next_stage();
    TOK_CUDA(cudaMemcpyAsync(stage.data, device + at, n, cudaMemcpyDefault, compute));
    TOK_CUDA(cudaEventRecord(stage.done, compute));
    return &stage;
  };
  const Stage* coming = bytes > 0 ? fetch(0) : nullptr;
  for (int64_t at = 0; at < bytes; at += kStageBytes) {
    const Stage* here = coming;
    if (at + kStageBytes < bytes) coming = fetch(at + kStageBytes);
    TOK_CUDA(cudaEventSynchronize(here->done));
    std::memcpy(host + at, here->data, std::min(kStageBytes, bytes - at));
  }
}

}  // namespace tokamak::gpu
