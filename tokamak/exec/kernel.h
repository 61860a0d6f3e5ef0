// Kernels: each is prepared once for an op, its types and a variant, and then runs on operands
// without any decision.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "tokamak/graph/op.h"

namespace tokamak {

/// A strided operand in a device's memory.
struct Tensor {
  void* data = nullptr;
  TensorType type;
  Dims strides;  ///< elements

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  /// Extent of dim `d`; negative counts from the end.
  int64_t dim(int d) const { return type.dims[d < 0 ? static_cast<int>(type.dims.size()) + d : d]; }

  int64_t numel() const { return type.numel(); }
};

/// A device's queue of work (cudaStream_t); null on a CPU, whose kernels run at once.
using DeviceStream = void*;

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  void* workspace = nullptr;
  std::array<bool, 4> accumulate{};  ///< whether output k adds to what it holds
  DeviceStream stream = nullptr;     ///< where a device's kernel enqueues its work

  bool has(size_t i) const { return i < in.size(); }
};

/// Kernels check nothing: `infer` has proved the types. They may run concurrently on different
/// operands. On a device they return once their work is enqueued.
using Kernel = std::function<void(const KernelArgs&)>;

/// A backend's way to prepare the kernels of one op.
struct KernelEntry {
  const OpRules* rules = nullptr;
  Kernel (*prepare)(const void* op, const KernelTypes& types, std::string_view variant) = nullptr;
};

}  // namespace tokamak
