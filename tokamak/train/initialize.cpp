#include "tokamak/train/initialize.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

template <class T>
void fill(const StateDecl& decl, uint64_t seed, int64_t first, std::span<std::byte> out) {
  const auto count = static_cast<int64_t>(out.size() / sizeof(T));
  const uint64_t stream = stream_of(decl.name);
  const Init& init = decl.init;
  const auto normal =
      init.cut > 0.0 ? TruncatedNormal::between(-init.cut, init.cut) : TruncatedNormal{};
  std::array<uint32_t, 4> words{};
  for (int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<uint64_t>(first + i);
    double value = init.kind == Init::Kind::kOnes ? 1.0 : 0.0;
    if (init.kind == Init::Kind::kNormal) {
      if (i == 0 || element % 4 == 0) words = philox(seed, element / 4, stream);
      value = init.std * normal(words[element % 4]);
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

}  // namespace

void initial_values(const StateDecl& decl, uint64_t seed, int64_t first, std::span<std::byte> out) {
  switch (decl.type.dtype) {
    case DType::kF32:
      return fill<float>(decl, seed, first, out);
    case DType::kF64:
      return fill<double>(decl, seed, first, out);
    case DType::kBF16:
      return fill<BF16>(decl, seed, first, out);
    default:
      TOK_CHECK(false, "{}: {}", decl.name, name_of(decl.type.dtype));
  }
}

void initialize(const StateAccess& access, uint64_t seed) {
  const StateTable& states = access.states();
  const int64_t num_threads = std::max(1U, std::thread::hardware_concurrency());
  for (const StateId id : states.of_kind(StateKind::kParameter)) {
    const StateDecl& decl = states[id];
    const int64_t numel = decl.type.numel();
    const int64_t size = size_of(decl.type.dtype);
    std::vector<std::byte> values(static_cast<size_t>(decl.type.bytes()));
    std::vector<std::jthread> threads;
    for (int64_t t = 0; t < num_threads; ++t) {
      const int64_t begin = numel * t / num_threads;
      const int64_t end = numel * (t + 1) / num_threads;
      if (begin == end) continue;
      const auto part = std::span(values).subspan(static_cast<size_t>(begin * size),
                                                  static_cast<size_t>((end - begin) * size));
      threads.emplace_back([&decl, seed, begin, part] { initial_values(decl, seed, begin, part); });
    }
    threads.clear();
    access.write(id, std::span<const std::byte>(values));
  }
  for (const StateId id : states.of_kind(StateKind::kMoment)) {
    access.write(id, std::span<const std::byte>(
                         std::vector<std::byte>(static_cast<size_t>(states[id].type.bytes()))));
  }
}

}  // namespace tokamak
