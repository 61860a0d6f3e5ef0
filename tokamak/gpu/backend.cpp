#include "tokamak/gpu/backend.h"

#include <algorithm>
#include <cstring>

#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"
#include "tokamak/gpu/attention/cudnn_attention.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/copy_lanes.h"
#include "tokamak/gpu/device.h"
#include "tokamak/gpu/draw.h"
#include "tokamak/gpu/gemm/gemm.h"
#include "tokamak/gpu/loaded/library.h"
#include "tokamak/gpu/nccl/nccl_world.h"
#include "tokamak/gpu/setup.h"
#include "tokamak/ops/table.h"

namespace tokamak::gpu {

#define X(stem, Type) Kernel prepare(const Type&, const KernelTypes&, const Setup&);
TOK_FOR_EACH_KERNEL_OP(X)
#undef X

namespace {

struct Entry {
  const OpRules* rules = nullptr;
  Kernel (*prepare)(const void* op, const KernelTypes& types, const Setup& setup) = nullptr;
};

template <class T>
Kernel prepare_erased(const void* op, const KernelTypes& types, const Setup& setup) {
  return prepare(*static_cast<const T*>(op), types, setup);
}

#define X(stem, Type) Entry{.rules = &kRules<Type>, .prepare = &prepare_erased<Type>},
constexpr std::array kKernels{TOK_FOR_EACH_KERNEL_OP(X)};
#undef X

class DeviceMemory final : public Allocation {
 public:
  DeviceMemory(int64_t bytes, bool is_symmetric, std::shared_ptr<int64_t> total)
      : bytes_(bytes), is_symmetric_(is_symmetric), total_(std::move(total)) {
    const cudaError_t status = take();
    if (status == cudaErrorMemoryAllocation) {
      size_t free = 0;
      size_t all = 0;
      cudaGetLastError();
      TOK_CUDA(cudaMemGetInfo(&free, &all));
      fail(
          "not enough GPU memory: wanted {} bytes for one arena, {} of {} are free; use fewer "
          "sequences per microbatch (training.local_batch_size), more recompute "
          "(activation_checkpoint.mode) or more shards (parallelism.data_parallel_shard_degree)",
          bytes, free, all);
    }
    check(status, "cudaMalloc");
    // Streams that do not wait for the default one must find the zeros.
    TOK_CUDA(cudaMemset(data_, 0, bytes));
    TOK_CUDA(cudaDeviceSynchronize());
    *total_ += bytes_;
  }

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  ~DeviceMemory() override {
    is_symmetric_ ? free_symmetric(data_) : static_cast<void>(cudaFree(data_));
    *total_ -= bytes_;
  }

  std::byte* data() const override { return static_cast<std::byte*>(data_); }

  int64_t bytes() const override { return bytes_; }

 private:
  cudaError_t take() {
    if (!is_symmetric_) return cudaMalloc(&data_, bytes_);
    data_ = allocate_symmetric(bytes_);
    return data_ == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  }

  void* data_ = nullptr;
  int64_t bytes_;
  bool is_symmetric_;
  std::shared_ptr<int64_t> total_;
};

// Pinned pages have one address for the host and for kernels.
class PinnedMemory final : public Allocation {
 public:
  explicit PinnedMemory(int64_t bytes) : bytes_(bytes) {
    const cudaError_t status = cudaMallocHost(&data_, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(
          "not enough host memory that can be pinned: training.enable_cpu_offload wants {} bytes; "
          "training.offload_above_gib keeps on the device what fits",
          bytes);
    }
    check(status, "cudaMallocHost");
    const auto part = [&](size_t i) {
      const auto at = static_cast<int64_t>(i) * kPart;
      std::memset(this->data() + at, 0, static_cast<size_t>(std::min(kPart, bytes_ - at)));
    };
    in_parallel(static_cast<size_t>((bytes_ + kPart - 1) / kPart), kThreads, part);
  }

  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  ~PinnedMemory() override { cudaFreeHost(data_); }

  std::byte* data() const override { return static_cast<std::byte*>(data_); }

  int64_t bytes() const override { return bytes_; }

 private:
  static constexpr int64_t kPart = int64_t{1} << 30U;
  static constexpr int kThreads = 8;

  void* data_ = nullptr;
  int64_t bytes_;
};

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(const Options& options)
      : device_(options.device),
        copies_(options.device),
        reference_only_(options.reference_only),
        symmetric_(options.symmetric),
        devices_per_host_(has_copy_engine_gathers() ? options.devices_per_host : 0),
        deterministic_(options.deterministic),
        rates_(options.rates) {}

  Target target() const override {
    Target target{.backend = "gpu",
                  .arch = device_.arch(),
                  .reference_only = reference_only_,
                  .devices_per_host = devices_per_host_,
                  .deterministic = deterministic_,
                  .rates = rates_};
    if (gemm_library_version().empty()) target.lacks.push_back("cublaslt");
    if (kIsHip) target.lacks.push_back("sm_90a");  // gfx90a has the same number
    if (gemm_library_version().empty() || target.arch < 100) target.lacks.push_back("cublaslt_mx");
    if (cudnn_version().empty()) target.lacks.push_back("cudnn");
    return target;
  }

  std::string arithmetic() const override { return device_.name(); }

  std::unique_ptr<Allocation> allocate(int64_t bytes) override {
    return std::make_unique<DeviceMemory>(bytes, symmetric_, total_);
  }

  std::unique_ptr<Allocation> allocate_host(int64_t bytes) override {
    return std::make_unique<PinnedMemory>(bytes);
  }

  std::unique_ptr<Allocation> allocate_spare(int64_t bytes, int64_t left) override {
    if (*free_bytes() < bytes + left) return nullptr;
    return std::make_unique<DeviceMemory>(bytes, false, std::make_shared<int64_t>(0));
  }

  void copy_within(std::byte* to, const std::byte* from, int64_t bytes) override {
    TOK_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                             as_stream(device_.stream(0))));
  }

  std::optional<int64_t> free_bytes() const override {
    size_t free = 0;
    size_t all = 0;
    TOK_CUDA(cudaMemGetInfo(&free, &all));
    return static_cast<int64_t>(free);
  }

  int64_t allocated_bytes() const override { return *total_; }

  bool draw(std::byte* device, const RandomRange& range) override {
    gpu::draw(device, range, device_.stream(0));
    return true;
  }

  Kernel prepare(const OpRules& rules, const void* op, const KernelTypes& types,
                 std::string_view variant) override {
    for (const Entry& entry : kKernels) {
      if (entry.rules == &rules)
        return entry.prepare(
            op, types, {.variant = variant, .device = &device_, .deterministic = deterministic_});
    }
    TOK_CHECK(false, "{} has no GPU kernel", rules.name);
  }

  DeviceStreams* streams() override { return &device_; }

  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    device_.upload(device, host, bytes);
  }

  void clear(std::byte* device, int64_t bytes) override { device_.clear(device, bytes); }

  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    device_.download(host, device, bytes);
  }

  void read_beside(std::byte* host, const std::byte* device, int64_t bytes) override {
    copies_.read(host, device, bytes);
  }

  void write_beside(std::byte* device, const std::byte* host, int64_t bytes) override {
    copies_.write(device, host, bytes);
  }

  void prepare_copies(int num_threads) override { copies_.prepare(num_threads); }

  void pin(std::byte* host, int64_t bytes) override { copies_.pin(host, bytes); }

  void unpin(std::byte* host) override { copies_.unpin(host); }

  void settle() override { TOK_CUDA(cudaStreamSynchronize(as_stream(device_.stream(0)))); }

 private:
  Device device_;
  CopyLanes copies_;
  bool reference_only_;
  bool symmetric_;
  int devices_per_host_;
  bool deterministic_;
  Rates rates_;
  std::shared_ptr<int64_t> total_ = std::make_shared<int64_t>(0);
};

}  // namespace

int num_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string why_none() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    return "the GPU driver is too old for this program (or there is none)";
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? "" : "the driver shows no device (CUDA_VISIBLE_DEVICES?)";
}

std::unique_ptr<Backend> make_backend(const Options& options) {
  const int count = num_devices();
  TOK_REQUIRE(count > 0, "no GPU: {}", why_none());
  TOK_REQUIRE(options.device >= 0 && options.device < count, "GPU {}: this host shows {}",
              options.device, count);
  // A build without a library says so in Target::lacks; one that lacks it here may not pretend so.
  TOK_REQUIRE(is_here(CudaLibrary::kCublasLt), "GPUs need cuBLASLt: {}",
              why_missing(CudaLibrary::kCublasLt));
  if (!is_here(CudaLibrary::kCudnn))
    fmt::print(stderr, "note: attention by a slower kernel of this program: {}\n",
               why_missing(CudaLibrary::kCudnn));
  return std::make_unique<GpuBackend>(options);
}

}  // namespace tokamak::gpu
