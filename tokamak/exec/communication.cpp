#include "tokamak/exec/communication.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"

namespace tokamak {
namespace {

// The number of slices before `dim`, each cut on its own; 1 where whole values become rows.
int64_t slices_of(const Dims& dims, int dim) {
  return std::accumulate(dims.begin(), dims.begin() + std::max(dim, 0), int64_t{1},
                         std::multiplies<>());
}

struct Call {
  std::span<Communicator* const> groups;
  KernelTypes types;

  Kernel operator()(const AllGather& op) const {
    const TensorType x = types.in[0];
    const int64_t slices = slices_of(x.dims, op.dim);
    return [=, &c = of(op.group), n = x.numel() / slices, t = x.dtype](const KernelArgs& a) {
      TOK_CHECK(!a.accumulate[0], "an all-gather cannot add");
      c.all_gather_slices(a.in[0].data, a.out[0].data, slices, n, t, a.stream);
    };
  }

  Kernel operator()(const ReduceScatter& op) const {
    const TensorType y = types.out[0];
    const int64_t slices = slices_of(y.dims, op.dim);
    return [=, &c = of(op.group), n = y.numel() / slices, t = y.dtype](const KernelArgs& a) {
      TOK_CHECK(!a.accumulate[0], "a reduce-scatter cannot add");
      c.reduce_scatter_slices(a.in[0].data, a.out[0].data, slices, n, t, a.stream);
    };
  }

  Kernel operator()(const AllReduce& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), n = x.numel(), t = x.dtype, r = op.op](const KernelArgs& a) {
      c.all_reduce(a.in[0].data, a.out[0].data, n, t, r, a.stream);
    };
  }

  Kernel operator()(const AllToAll& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), n = x.numel() / op.group.size, t = x.dtype](const KernelArgs& a) {
      c.all_to_all(a.in[0].data, a.out[0].data, n, t, a.stream);
    };
  }

  Kernel operator()(const Shift& op) const {
    const TensorType x = types.in[0];
    const int size = op.group.size;
    const int up = (op.offset % size + size) % size;
    const int to = (op.group.rank + up) % size;
    const int from = (op.group.rank + size - up) % size;
    return [=, &c = of(op.group), n = x.numel(), t = x.dtype](const KernelArgs& a) {
      c.send_recv(a.in[0].data, to, a.out[0].data, from, n, t, a.stream);
    };
  }

  Kernel operator()(const Send& op) const {
    const TensorType x = types.in[0];
    return [&c = of(op.group), to = 1 - op.group.rank, n = x.numel(), t = x.dtype](
               const KernelArgs& a) { c.send_recv(a.in[0].data, to, nullptr, -1, n, t, a.stream); };
  }

  Kernel operator()(const Recv& op) const {
    const TensorType y = types.out[0];
    return [&c = of(op.group), from = 1 - op.group.rank, n = y.numel(),
            t = y.dtype](const KernelArgs& a) {
      c.send_recv(nullptr, -1, a.out[0].data, from, n, t, a.stream);
    };
  }

  Communicator& of(const CommGroup& group) const {
    const auto id = static_cast<size_t>(group.id);
    TOK_CHECK(group.id >= 0 && id < groups.size() && groups[id]->size() == group.size &&
                  groups[id]->rank() == group.rank,
              "group {} is not member {} of {}", group.id, group.rank, group.size);
    return *groups[id];
  }
};

// The kernel of `op` if it is one of Ts.
template <class... Ts>
Kernel pick(const OpRules& rules, const void* op, const Call& call) {
  Kernel kernel;
  ((&rules == &kRules<Ts> ? void(kernel = call(*static_cast<const Ts*>(op))) : void()), ...);
  return kernel;
}

}  // namespace

Kernel communication_kernel(const Task& task, std::span<Communicator* const> groups) {
  const TaskTypes types(task);
  const Call call{.groups = groups, .types = types.kernel_types()};
  Kernel kernel = pick<AllGather, ReduceScatter, AllReduce, AllToAll, Shift, Send, Recv>(
      *task.rules, task.op.get(), call);
  TOK_CHECK(kernel, "{} is no communication op", task.rules->name);
  return kernel;
}

}  // namespace tokamak
