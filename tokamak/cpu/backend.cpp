#include "tokamak/cpu/backend.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "tokamak/core/error.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/cpu/parallel.h"
#include "tokamak/ops/table.h"

namespace tokamak::cpu {

#define X(stem, Type) Kernel prepare(const Type&, const KernelTypes&, std::string_view);
TOK_FOR_EACH_KERNEL_OP(X)
#undef X

namespace {

template <class T>
Kernel prepare_erased(const void* op, const KernelTypes& types, std::string_view variant) {
  return prepare(*static_cast<const T*>(op), types, variant);
}

#define X(stem, Type) KernelEntry{.rules = &kRules<Type>, .prepare = &prepare_erased<Type>},
constexpr std::array kKernels{TOK_FOR_EACH_KERNEL_OP(X)};
#undef X

constexpr int64_t kHugePage = int64_t{2} << 20U;

class Pages final : public Allocation {
 public:
  Pages(int64_t bytes, std::shared_ptr<std::atomic<int64_t>> total)
      : bytes_(bytes), total_(std::move(total)) {
    void* p = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TOK_REQUIRE(
        p != MAP_FAILED,
        "not enough memory: wanted {} bytes for one arena; use fewer sequences per microbatch "
        "(training.local_batch_size) or more recompute (activation_checkpoint.mode)",
        bytes);
    data_ = static_cast<std::byte*>(p);
    if (bytes >= kHugePage) ::madvise(data_, bytes, MADV_HUGEPAGE);
    *total_ += bytes_;
  }

  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  ~Pages() override {
    ::munmap(data_, bytes_);
    *total_ -= bytes_;
  }

  std::byte* data() const override { return data_; }

  int64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_;
  std::shared_ptr<std::atomic<int64_t>> total_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const Options& options) : reference_only_(options.reference_only) {
#ifdef _OPENMP
    if (options.threads > 0) {
      omp_set_num_threads(options.threads);
    } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      omp_set_num_threads(usable_cores());
    }
#endif
  }

  Target target() const override {
    return {.backend = "cpu", .threads = num_threads(), .reference_only = reference_only_};
  }

  std::string arithmetic() const override {
    std::string sets = "CPU with";
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) sets += " avx2";
    if (__builtin_cpu_supports("avx512f")) sets += " avx512f";
#ifndef __clang__  // clang 14 does not know the name
    if (__builtin_cpu_supports("amx-bf16")) sets += " amx-bf16";
#endif
#endif
    return sets + ", oneDNN's matmuls with " + Gemm::instruction_set();
  }

  std::unique_ptr<Allocation> allocate(int64_t bytes) override {
    return std::make_unique<Pages>(bytes, total_);
  }

  int64_t allocated_bytes() const override {
    return *total_;
  }

  Kernel prepare(const OpRules& rules, const void* op, const KernelTypes& types,
                 std::string_view variant) override {
    for (const KernelEntry& entry : kKernels) {
      if (entry.rules == &rules) return entry.prepare(op, types, variant);
    }
    TOK_CHECK(false, "{} has no CPU kernel", rules.name);
  }

  void enter_stream_thread() override {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
  }

  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    std::memcpy(device, host, bytes);
  }

  void clear(std::byte* device, int64_t bytes) override {
    std::memset(device, 0, bytes);
  }

  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    std::memcpy(host, device, bytes);
  }

 private:
  bool reference_only_;
  std::shared_ptr<std::atomic<int64_t>> total_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace

std::unique_ptr<Backend> make_backend(const Options& options) {
  constexpr int kMostThreads = 4096;
  TOK_REQUIRE(options.threads >= 0 && options.threads <= kMostThreads,
              "{} threads of a CPU: wanted 1 to {}, or 0 for all", options.threads, kMostThreads);
  TOK_REQUIRE(options.threads > 0 || num_threads() <= kMostThreads,
              "environment: OMP_NUM_THREADS asks for {} threads of a CPU, wanted at most {}",
              num_threads(), kMostThreads);
  return std::make_unique<CpuBackend>(options);
}

}  // namespace tokamak::cpu
