// Barriers in shared memory that count arrivals and the bytes of copies, on sm_90 and later.
#pragma once

#include <cstdint>

namespace tokamak::gpu {

/// Returns the address of shared memory as instructions take it.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Counts arrivals and the bytes that copies deliver. Rounds count from 0.
class CountingBarrier {
 public:
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }

  /// Lets copies and other blocks see what `init` has written.
  static __device__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  /// Arrives and announces bytes.
  __device__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }

  /// Returns once the round of this parity is complete. Before round 0, that of parity 1 is.
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred is_done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 is_done, [%0], %1;\n"
        "@!is_done bra again;\n"
        "}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }

  __device__ uint32_t address() const { return shared_address(&word_); }

 private:
  uint64_t word_;
};

}  // namespace tokamak::gpu
