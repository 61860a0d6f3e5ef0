#include "tokamak/exec/backend.h"

namespace tokamak {

Kernel prepare(Backend& backend, const Task& task) {
  const TaskTypes types(task);
  return backend.prepare(*task.rules, task.op.get(), types.kernel_types(), task.variant->name);
}

}  // namespace tokamak
