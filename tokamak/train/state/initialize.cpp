#include "tokamak/train/state/initialize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/train/state/pieces.h"

namespace tokamak {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 22;
// Fewer elements are not worth a thread.
constexpr int64_t kThreadElements = int64_t{1} << 14;

// Fills `out` with the elements `first` up to `end` of a piece.
void fill_range(const TensorPiece& piece, const InitialValues& values, int64_t first, int64_t end,
                std::span<std::byte> out) {
  const int64_t width = size_of(piece.type.dtype);
  const Slice range{.box = slice_of(piece).box, .begin = first, .end = end};
  for_each_shared_run(whole_slice(piece.type.dims), range,
                      [&](int64_t from, int64_t to, int64_t count) {
                        values.read(from, out.subspan(to * width, count * width));
                      });
}

// The box may cut the first and the last dim; all others are whole.
bool draw_piece(const StateAccess& access, const TensorPiece& piece, uint64_t seed) {
  const Dims& dims = piece.type.dims;
  if (piece.init.kind != Init::Kind::kNormal || dims.empty() || dims.size() > 2) return false;
  const auto last = dims.size() - 1;
  const double cut = piece.init.cut;
  const RandomRange range{
      .dtype = piece.type.dtype,
      .seed = seed,
      .stream = stream_of(piece.tensor),
      .std = piece.init.std,
      .normal = cut > 0.0 ? TruncatedNormal::between(-cut, cut) : TruncatedNormal{},
      .columns = dims[last],
      .first_row = dims.size() == 2 ? piece.box_begin[0] : 0,
      .first_column = piece.box_begin[last],
      .box_columns = piece.box_end[last] - piece.box_begin[last],
      .begin = piece.begin,
      .count = piece.numel()};
  return access.draw_at(piece.state, piece.offset * size_of(piece.type.dtype), range);
}

void initialize_piece(const StateAccess& access, const TensorPiece& piece, uint64_t seed) {
  const InitialValues values(piece.tensor, piece.type.dtype, piece.init, seed);
  const int64_t width = size_of(piece.type.dtype);
  const int64_t cores = usable_cores();
  std::vector<std::byte> part(std::min(piece.numel(), kPartElements) * width);
  for (int64_t at = 0; at < piece.numel(); at += kPartElements) {
    const int64_t count = std::min(kPartElements, piece.numel() - at);
    const int64_t num_threads = std::clamp<int64_t>(count / kThreadElements, 1, cores);
    const auto fill = [&](int64_t t) {
      const int64_t begin = count * t / num_threads;
      const int64_t end = count * (t + 1) / num_threads;
      fill_range(piece, values, piece.begin + at + begin, piece.begin + at + end,
                 std::span(part).subspan(begin * width, (end - begin) * width));
    };
    std::vector<std::jthread> threads;
    for (int64_t t = 1; t < num_threads; ++t) threads.emplace_back(fill, t);
    fill(0);
    threads.clear();
    write_piece(access, piece, at, std::span(part).first(count * width));
  }
}

}  // namespace

InitialValues::InitialValues(std::string name, DType dtype, const Init& init, uint64_t seed)
    : name_(std::move(name)),
      dtype_(dtype),
      init_(init),
      seed_(seed),
      stream_(stream_of(name_)),
      normal_(init.cut > 0.0 ? TruncatedNormal::between(-init.cut, init.cut) : TruncatedNormal{}) {}

template <class T>
void InitialValues::fill(int64_t first, std::span<std::byte> out) const {
  const auto count = static_cast<int64_t>(out.size() / sizeof(T));
  std::array<uint32_t, 4> words{};
  for (int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<uint64_t>(first + i);
    double value = init_.kind == Init::Kind::kOnes ? 1.0 : 0.0;
    if (init_.kind == Init::Kind::kNormal) {
      if (i == 0 || element % 4 == 0) words = philox(seed_, element / 4, stream_);
      value = init_.std * normal_(words[element % 4]);
    }
    T x{};
    if constexpr (std::is_same_v<T, BF16>) {
      x = BF16(static_cast<float>(value));
    } else {
      x = static_cast<T>(value);
    }
    std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(T), &x, sizeof(T));
  }
}

void InitialValues::read(int64_t first, std::span<std::byte> out) const {
  switch (dtype_) {
    case DType::kF32:
      return fill<float>(first, out);
    case DType::kF64:
      return fill<double>(first, out);
    case DType::kBF16:
      return fill<BF16>(first, out);
    default:
      TOK_CHECK(false, "{}: {}", name_, name_of(dtype_));
  }
}

void initialize(const StateAccess& access, std::span<const TensorPiece> pieces, uint64_t seed) {
  for (const TensorPiece& piece : pieces) {
    if (piece.kind == StateKind::kParameter) {
      if (piece.numel() == 0 || draw_piece(access, piece, seed)) continue;
      initialize_piece(access, piece, seed);
    } else {
      const int64_t width = size_of(piece.type.dtype);
      access.clear_at(piece.state, piece.offset * width, piece.numel() * width);
    }
  }
}

void make_copies(const PlannedRun& run, const Memory& memory) {
  if (run.copies_plan() == nullptr) return;
  Executor executor(*run.copies_plan(), memory);
  for (const ScheduleItem& item : run.copies_plan()->schedule(1)) executor.run(item);
  executor.settle();
}

}  // namespace tokamak
