#include "tokamak/train/bench/op_benchmark.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/core/timing.h"
#include "tokamak/exec/executor.h"
#include "tokamak/plan/compile.h"
#include "tokamak/train/bench/op_scenes.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMinRuns = 5;
constexpr int64_t kMaxRuns = 200;
constexpr int64_t kMaxSets = 16;
// How many elements are drawn for an operand and repeated: a prime, so that no two rows are the
// same.
constexpr int64_t kDrawn = 1048573;

// Returns the bytes of all sets of operands together: several times what caches hold.
int64_t bytes_wanted(const Backend& backend) {
  return (backend.target().backend == "gpu" ? int64_t{512} : int64_t{16}) << 20U;
}

double value_of(const OperandFill& fill, int64_t element) {
  const auto draw = [&] {
    return random_u32(1, static_cast<uint64_t>(fill.state.index), static_cast<uint64_t>(element));
  };
  switch (fill.kind) {
    case OperandFill::Kind::kNormal:
      return normal_quantile(to_uniform(draw()));
    case OperandFill::Kind::kPositive:
      return std::abs(normal_quantile(to_uniform(draw())));
    case OperandFill::Kind::kBelow:
      return static_cast<double>(draw() % static_cast<uint64_t>(fill.limit));
    case OperandFill::Kind::kCount:
      return static_cast<double>(element % fill.limit);
    default:
      return 1.0;
  }
}

template <class T>
void write(const StateAccess& access, const OperandFill& fill) {
  const int64_t n = access.states()[fill.state].type.numel();
  const int64_t drawn = fill.kind == OperandFill::Kind::kCount ? n : std::min(n, kDrawn);
  std::vector<T> values(drawn);
  for (int64_t i = 0; i < drawn; ++i) {
    const double value = value_of(fill, i);
    if constexpr (std::is_same_v<T, BF16>) {
      values[i] = BF16(static_cast<float>(value));
    } else {
      values[i] = static_cast<T>(value);
    }
  }
  const auto bytes = std::as_bytes(std::span<const T>(values));
  for (int64_t at = 0; at < n; at += drawn) {
    const auto count = static_cast<size_t>(std::min(drawn, n - at)) * sizeof(T);
    access.write_at(fill.state, at * static_cast<int64_t>(sizeof(T)), bytes.first(count));
  }
}

void write_random(const StateAccess& access, const OperandFill& fill) {
  switch (access.states()[fill.state].type.dtype) {
    case DType::kBF16:
      return write<BF16>(access, fill);
    case DType::kF32:
      return write<float>(access, fill);
    case DType::kF64:
      return write<double>(access, fill);
    case DType::kI32:
      return write<int32_t>(access, fill);
    default:
      TOK_CHECK(false, "no operand of this type");
  }
}

int64_t bytes_of_one(const OpScene& scene, const Dims& dims, DType dtype) {
  StateTable states;
  Graph graph(states);
  SceneBuilder builder(states, graph, dtype);
  scene.build(builder, dims);
  return lay_out(states).bytes;
}

// Returns rows of one call, in the order of their first spans.
std::vector<OpTime> median_rows(std::span<const TaskSpan> spans, const DeviceRates& rates) {
  std::vector<OpTime> rows;
  std::vector<std::vector<double>> seconds;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> places;
  for (const TaskSpan& s : spans) {
    OpTime one = time_by_op({&s, 1}, rates, OpGrouping::kByShape)[0];
    const auto [at, is_new] = places.try_emplace({one.op, one.variant, one.shape}, rows.size());
    if (is_new) {
      rows.push_back(std::move(one));
      seconds.emplace_back();
    }
    seconds[at->second].push_back(s.end_s - s.begin_s);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].calls = static_cast<int64_t>(seconds[r].size());
    rows[r].seconds = median(std::move(seconds[r]));
  }
  return rows;
}

}  // namespace

std::vector<OpTime> benchmark_scene(const OpScene& scene, const Dims& dims, DType dtype,
                                    Backend& backend, const DeviceRates& rates, double budget_s) {
  TOK_REQUIRE(dims.size() == scene.small[0].size() &&
                  std::ranges::all_of(dims, [](int64_t d) { return d > 0; }),
              "{}: wanted sizes {}, got {}", scene.name, scene.sizes, to_string(dims));
  const int64_t sets =
      std::clamp<int64_t>(bytes_wanted(backend) / bytes_of_one(scene, dims, dtype), 1, kMaxSets);
  StateTable states;
  Graph graph(states);
  SceneBuilder builder(states, graph, dtype);
  for (int64_t i = 0; i < sets; ++i) scene.build(builder, dims);
  const StateLayout layout = lay_out(states);
  const Plan plan = compile(graph, layout, {.fuse = false, .target = backend.target()});
  const Plan* plans[] = {&plan};
  const Memory memory(backend, plans);
  const StateAccess access(memory, states, layout);
  for (const OperandFill& fill : builder.fills()) write_random(access, fill);
  Executor executor(plan, memory);
  const auto items = plan.schedule(1);
  const auto run = [&] {
    for (const ScheduleItem& item : items) executor.run(item);
  };
  run();
  executor.settle();
  const auto start = Clock::now();
  run();
  executor.settle();
  const double once_s = seconds_since(start);
  const auto runs =
      std::clamp<int64_t>(static_cast<int64_t>(budget_s / once_s), kMinRuns, kMaxRuns);
  std::vector<TaskSpan> spans;
  executor.trace(&spans);
  for (int64_t i = 0; i < runs; ++i) run();
  executor.trace(nullptr);
  executor.settle();
  return median_rows(spans, rates);
}

}  // namespace tokamak
