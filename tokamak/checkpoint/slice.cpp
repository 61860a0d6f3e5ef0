#include "tokamak/checkpoint/slice.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>

namespace tokamak {
namespace {

// The limit exists because boxes of one tensor are compared pair by pair.
constexpr size_t kMostBoxes = 8192;

Box intersection(const Box& a, const Box& b) {
  Box shared = a;
  for (size_t i = 0; i < a.begin.size(); ++i) {
    shared.begin[i] = std::max(a.begin[i], b.begin[i]);
    shared.end[i] = std::min(a.end[i], b.end[i]);
  }
  return shared;
}

bool is_empty(const Box& box) {
  for (size_t i = 0; i < box.begin.size(); ++i) {
    if (box.begin[i] >= box.end[i]) return true;
  }
  return false;
}

// Narrows the box to the rows of the outermost dim that the slice's range touches.
void narrow_rows(Box& box, const Slice& slice, int64_t row_elements) {
  const int64_t base = slice.box.begin[0];
  const int64_t last_row = (slice.end + row_elements - 1) / row_elements;
  box.begin[0] = std::max(box.begin[0], base + slice.begin / row_elements);
  box.end[0] = std::min(box.end[0], base + last_row);
}

int64_t position(const Dims& index, const Box& box, const Dims& strides) {
  int64_t at = 0;
  for (size_t i = 0; i < index.size(); ++i) at += (index[i] - box.begin[i]) * strides[i];
  return at;
}

// Returns the first dim of the longest suffix over which `shared` is contiguous in both boxes.
size_t first_run_dim(const Dims& shared, const Dims& from, const Dims& to) {
  size_t dim = shared.size() - 1;
  while (dim > 0 && shared[dim] == from[dim] && shared[dim] == to[dim]) --dim;
  return dim;
}

bool advance(Dims& index, const Box& box, size_t num_outer) {
  for (size_t i = num_outer; i-- > 0;) {
    if (++index[i] < box.end[i]) return true;
    index[i] = box.begin[i];
  }
  return false;
}

}  // namespace

Box whole_box(const Dims& dims) {
  return {.begin = Dims(dims.size(), 0), .end = dims};
}

Dims extents(const Box& box) {
  Dims dims = box.end;
  for (size_t i = 0; i < dims.size(); ++i) dims[i] -= box.begin[i];
  return dims;
}

int64_t numel(const Box& box) {
  int64_t count = 1;
  for (const int64_t extent : extents(box)) count *= extent;
  return count;
}

Slice slice_of(const Box& box) {
  return {.box = box, .begin = 0, .end = numel(box)};
}

Slice whole_slice(const Dims& dims) {
  return slice_of(whole_box(dims));
}

std::string slice_problem(const Slice& slice, const Dims& dims) {
  const Box& box = slice.box;
  if (box.begin.size() != dims.size() || box.end.size() != dims.size()) {
    return fmt::format("a box of {} dims in a tensor {}", box.begin.size(), to_string(dims));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (box.begin[i] < 0 || box.begin[i] > box.end[i] || box.end[i] > dims[i]) {
      return fmt::format("the box {} to {} leaves the tensor {}", to_string(box.begin),
                         to_string(box.end), to_string(dims));
    }
  }
  if (slice.begin < 0 || slice.begin > slice.end || slice.end > numel(box)) {
    return fmt::format("the range [{}, {}) leaves its box of {} elements", slice.begin, slice.end,
                       numel(box));
  }
  return "";
}

void for_each_shared_run(const Slice& from, const Slice& to,
                         const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const auto emit = [&](int64_t from_at, int64_t to_at, int64_t count) {
    const int64_t low = std::max({int64_t{0}, from.begin - from_at, to.begin - to_at});
    const int64_t high = std::min({count, from.end - from_at, to.end - to_at});
    if (low < high) run(from_at + low - from.begin, to_at + low - to.begin, high - low);
  };
  if (from.box.begin.empty()) return emit(0, 0, 1);
  Box shared = intersection(from.box, to.box);
  if (is_empty(shared)) return;
  const Dims from_dims = extents(from.box);
  const Dims to_dims = extents(to.box);
  const Dims from_strides = row_major(from_dims);
  const Dims to_strides = row_major(to_dims);
  const size_t run_dim = first_run_dim(extents(shared), from_dims, to_dims);
  if (run_dim > 0) {
    narrow_rows(shared, from, from_strides[0]);
    narrow_rows(shared, to, to_strides[0]);
    if (is_empty(shared)) return;
  }
  const int64_t count = (shared.end[run_dim] - shared.begin[run_dim]) * from_strides[run_dim];
  Dims index = shared.begin;
  do {
    emit(position(index, from.box, from_strides), position(index, to.box, to_strides), count);
  } while (advance(index, shared, run_dim));
}

std::string cover_problem(std::span<const Slice> slices, const Dims& dims) {
  std::map<Box, std::vector<std::pair<int64_t, int64_t>>> ranges;
  int64_t held = 0;
  for (const Slice& slice : slices) {
    if (slice.numel() == 0) continue;
    ranges[slice.box].emplace_back(slice.begin, slice.end);
    held += slice.numel();
  }
  const int64_t wanted = numel(whole_box(dims));
  if (held != wanted) return fmt::format("its pieces hold {} of {} elements", held, wanted);
  if (ranges.size() > kMostBoxes) return fmt::format("more than {} boxes", kMostBoxes);
  for (auto& [box, spans] : ranges) {
    std::ranges::sort(spans);
    for (size_t i = 1; i < spans.size(); ++i) {
      if (spans[i].first < spans[i - 1].second) return "two of its pieces overlap";
    }
  }
  for (auto a = ranges.begin(); a != ranges.end(); ++a) {
    for (auto b = std::next(a); b != ranges.end(); ++b) {
      if (!is_empty(intersection(a->first, b->first))) return "two of its boxes overlap";
    }
  }
  return "";
}

}  // namespace tokamak
