#include "tokamak/train/state/pieces.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

void check_place(const StateAccess& access, const TensorPiece& piece) {
  const StateDecl& decl = access.states()[piece.state];
  TOK_CHECK(decl.type.dtype == piece.type.dtype && piece.offset >= 0 && piece.numel() >= 0 &&
                piece.offset + piece.numel() <= decl.type.numel(),
            "{}: {} elements of {} at {} of {}", piece.tensor, piece.numel(),
            name_of(piece.type.dtype), piece.offset, decl.name);
  const std::string problem = slice_problem(slice_of(piece), piece.type.dims);
  TOK_CHECK(problem.empty(), "{}: {}", piece.tensor, problem);
}

// Returns the number of elements per index of the outermost dim.
int64_t row_elements(const Dims& dims) {
  int64_t count = 1;
  for (size_t i = 1; i < dims.size(); ++i) count *= dims[i];
  return count;
}

}  // namespace

Slice slice_of(const TensorPiece& piece) {
  return {.box = {.begin = piece.box_begin, .end = piece.box_end},
          .begin = piece.begin,
          .end = piece.end};
}

std::vector<bool> segments_that_write(const Plan& plan, const StateLayout& layout,
                                      std::span<const TensorPiece> pieces) {
  // The pieces' bytes in an arena, sorted by their beginnings.
  EnumArray<ArenaKind, std::map<int64_t, int64_t>, kNumArenas> all_ends;
  for (const TensorPiece& piece : pieces) {
    const int64_t width = size_of(piece.type.dtype);
    const int64_t begin = layout[piece.state] + piece.offset * width;
    auto& ends = all_ends[layout.is_in_host(piece.state) ? ArenaKind::kHost : ArenaKind::kState];
    if (piece.numel() > 0) ends[begin] = std::max(ends[begin], begin + piece.numel() * width);
  }
  const auto meets = [&](const Operand& out) {
    const auto& ends = all_ends[out.arena];
    const auto after = ends.lower_bound(out.offset + out.extent_bytes());
    return after != ends.begin() && std::prev(after)->second > out.offset;
  };
  std::vector<bool> write;
  for (const Segment& segment : plan.segments) {
    write.push_back(std::ranges::any_of(
        segment.tasks, [&](const Task& task) { return std::ranges::any_of(task.out, meets); }));
  }
  return write;
}

std::vector<PieceSource> read_pieces(const StateAccess& access, std::span<const TensorPiece> pieces,
                                     StateKind kind, bool owned_only) {
  access.backend().settle();
  std::vector<PieceSource> sources;
  for (const TensorPiece& piece : pieces) {
    if (piece.kind != kind || (owned_only && !piece.is_owner)) continue;
    check_place(access, piece);
    const auto read = [access, state = piece.state, offset = piece.offset,
                       width = size_of(piece.type.dtype)](int64_t first, std::span<std::byte> out) {
      access.read_beside(state, (offset + first) * width, out);
    };
    sources.push_back({.piece = piece,
                       .elements = {.name = piece.tensor,
                                    .dtype = piece.type.dtype,
                                    .dims = {piece.numel()},
                                    .read = read}});
  }
  return sources;
}

void write_piece(const StateAccess& access, const TensorPiece& piece, int64_t first,
                 std::span<const std::byte> elements) {
  const int64_t width = size_of(piece.type.dtype);
  TOK_CHECK(first >= 0 && first * width + std::ssize(elements) <= piece.numel() * width, "{}",
            piece.tensor);
  access.write_at(piece.state, (piece.offset + first) * width, elements);
}

void load_piece(const StateAccess& access, const TensorPiece& piece, const TensorSource& tensor) {
  check_place(access, piece);
  TOK_CHECK(tensor.dims == piece.type.dims, "{}", piece.tensor);
  if (piece.numel() == 0) return;
  const DType dtype = piece.type.dtype;
  const TensorSource source = tensor.dtype == dtype ? tensor : cast(tensor, dtype);
  const Dims& dims = piece.type.dims;
  const int64_t width = size_of(dtype);
  const int64_t row = row_elements(dims);
  const int64_t box_row = row_elements(extents(slice_of(piece).box));
  const int64_t first_row = dims.empty() ? 0 : piece.box_begin[0] + piece.begin / box_row;
  const int64_t end_row =
      dims.empty() ? 1 : piece.box_begin[0] + (piece.end + box_row - 1) / box_row;
  // Read whole rows of the tensor, but for a piece of full rows only the elements it holds.
  int64_t at = first_row * row;
  int64_t end = end_row * row;
  if (box_row == row) {
    at += piece.begin % box_row;
    end -= (box_row - piece.end % box_row) % box_row;
  }
  const int64_t step = std::max<int64_t>(1, kStreamBytes / width);
  std::vector<std::byte> block(std::min(step, end - at) * width);
  for (; at < end; at += step) {
    const int64_t count = std::min(step, end - at);
    const auto bytes = std::span(block).first(count * width);
    source.read(at, bytes);
    const Slice read{.box = whole_box(dims), .begin = at, .end = at + count};
    for_each_shared_run(read, slice_of(piece), [&](int64_t from, int64_t to, int64_t n) {
      write_piece(access, piece, to, bytes.subspan(from * width, n * width));
    });
  }
}

}  // namespace tokamak
