// Tasks made by hand, for tests.
#pragma once

#include <memory>
#include <utility>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Places operands one after the other from `offset` of the scratch arena on: inputs, then outputs.
template <Op T>
Task make_task(T op, const Types& in, int stream = 0, int64_t offset = 0) {
  Task task{.rules = &kRules<T>, .variant = &T::variants().front(), .stream = stream};
  const auto place = [&](const TensorType& type) {
    Operand o{.offset = offset, .type = type, .strides = row_major(type.dims)};
    offset += type.bytes();
    return o;
  };
  const Types out = op.infer(in);
  for (const TensorType& type : in) task.in.push_back(place(type));
  for (const TensorType& type : out) task.out.push_back(place(type));
  task.accumulate.resize(out.size());
  task.op = std::make_shared<const T>(std::move(op));
  return task;
}

}  // namespace tokamak
