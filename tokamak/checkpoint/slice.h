// A slice is the part of a tensor that a rank holds: a range of the row-major order of a box.
// Tensor parallelism makes boxes, and flat sharding makes ranges of them. Reading any part copies
// the elements that two slices share.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tokamak/core/tensor_type.h"

namespace tokamak {

/// The elements with `begin` <= index < `end` in every dim.
struct Box {
  Dims begin;
  Dims end;

  bool operator==(const Box&) const = default;
  auto operator<=>(const Box&) const = default;
};

/// The elements from `begin` up to `end` of the row-major order of `box`.
struct Slice {
  Box box;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const Slice&) const = default;

  int64_t numel() const { return end - begin; }
};

Box whole_box(const Dims& dims);
Dims extents(const Box& box);
int64_t numel(const Box& box);

/// Return the slice of a whole box, or of a whole tensor.
Slice slice_of(const Box& box);
Slice whole_slice(const Dims& dims);

/// Returns "" if the slice lies inside a tensor of these dims, else what is wrong with it.
std::string slice_problem(const Slice& slice, const Dims& dims);

/// Calls `run(from_first, to_first, count)` for runs of elements that both slices hold, with
/// positions relative to each slice's own beginning. REQUIRES: both are slices of one tensor that
/// slice_problem() accepts.
void for_each_shared_run(const Slice& from, const Slice& to,
                         const std::function<void(int64_t, int64_t, int64_t)>& run);

/// Returns "" if the slices hold every element of the tensor exactly once, else what is wrong.
std::string cover_problem(std::span<const Slice> slices, const Dims& dims);

}  // namespace tokamak
