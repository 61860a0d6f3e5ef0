#include "tokamak/gpu/gemm/gemm_tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/gpu/gemm/gemm_timer.h"

namespace tokamak::gpu {
namespace {

constexpr int kCandidates = 32;
constexpr double kBudgetSeconds = 0.15;  // for each of the two rounds
constexpr size_t kLeastCandidates = 8;
constexpr size_t kMostFinalists = 4;
constexpr double kFinalistsWithin = 1.1;  // times the first round's best time
constexpr double kNoise = 1.005;          // within this factor the library's order decides

using Algo = cublasLtMatmulAlgo_t;

static_assert(sizeof(Algo) == sizeof(TunedChoice::algo));

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name,
         const T& value) {
  TOK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
}

// Returns the library's candidates, sorted from what it deems fastest.
std::vector<Algo> candidates_for(cublasLtHandle_t handle, GemmProblem problem) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  TOK_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(problem.workspace_bytes));
  // Split sums are added in fp32 whatever the result's type.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference, operand, uint32_t{16});
  std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &problem.operation, &problem.first, &problem.second, &problem.result, &problem.result,
      &preference, kCandidates, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) TOK_CUBLAS(status);
  std::vector<Algo> algos;
  for (const auto& result : std::span(results).first(found)) {
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(problem.workspace_bytes))
      algos.push_back(result.algo);
  }
  return algos;
}

bool is_valid(cublasLtHandle_t handle, GemmProblem problem, const Algo& algo) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, &problem.operation, &problem.first, &problem.second,
                              &problem.result, &problem.result, &algo, &result);
  return status == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(problem.workspace_bytes);
}

// Indices of the candidates worth a closer look, in the candidates' order. Every candidate is run
// once before it is timed: its code is loaded then.
std::vector<size_t> first_round(GemmTimer& timer, std::span<const Algo> candidates) {
  timer.times(candidates.first(1));
  const double one = std::max(1e-6, timer.times(candidates.first(1))[0]);
  const auto affordable = static_cast<size_t>(kBudgetSeconds / 2.0 / one);  // none if refused
  const auto tried =
      candidates.first(std::min(candidates.size(), std::max(kLeastCandidates, affordable)));
  timer.times(tried);
  const std::vector<double> times = timer.times(tried);
  std::vector<size_t> order(times.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return times[a] < times[b]; });
  const double limit = kFinalistsWithin * times[order[0]];
  order.resize(std::min(order.size(), kMostFinalists));
  std::erase_if(order, [&](size_t i) { return !std::isfinite(times[i]) || times[i] > limit; });
  std::sort(order.begin(), order.end());
  return order;
}

// The finalists take turns, so that the device's clock is the same for all of them.
std::optional<TunedChoice> fastest(GemmTimer& timer, std::span<const Algo> candidates) {
  std::vector<Algo> finalists;
  for (const size_t i : first_round(timer, candidates)) finalists.push_back(candidates[i]);
  if (finalists.empty()) return std::nullopt;
  std::vector<std::vector<double>> runs(finalists.size());
  double spent = 0.0;
  for (int run = 0; run < 7 && (run < 3 || spent < kBudgetSeconds); ++run) {
    const std::vector<double> times = timer.times(finalists);
    for (size_t i = 0; i < times.size(); ++i) {
      runs[i].push_back(times[i]);
      spent += times[i];
    }
  }
  std::vector<double> medians;
  for (const auto& times : runs) medians.push_back(median(times));
  const double best = *std::min_element(medians.begin(), medians.end());
  const auto chosen = static_cast<size_t>(
      std::find_if(medians.begin(), medians.end(), [&](double t) { return t <= kNoise * best; }) -
      medians.begin());
  return TunedChoice{.algo = std::bit_cast<std::array<uint64_t, 8>>(finalists[chosen]),
                     .microseconds = 1e6 * medians[chosen]};
}

}  // namespace

GemmTuner::GemmTuner(Device& device, TunerOptions options)
    : device_(device),
      options_(std::move(options)),
      cache_(options_.file,
             describe_machine(device, fmt::format("cuBLASLt {}", cublasLtGetVersion()))) {
  TOK_CUBLAS(cublasLtCreate(&handle_));
}

GemmTuner::~GemmTuner() {
  cublasLtDestroy(handle_);
}

Algo GemmTuner::choose(const GemmShape& shape, const GemmProblem& problem) {
  const std::string name = to_string(shape);
  const auto before = chosen_.find(name);
  if (before != chosen_.end() && is_valid(handle_, problem, before->second)) return before->second;
  return chosen_[name] = find(shape, problem);
}

Algo GemmTuner::find(const GemmShape& shape, const GemmProblem& problem) {
  const std::string name = to_string(shape);
  const auto usable = [&](const std::optional<TunedChoice>& choice) -> std::optional<Algo> {
    if (!choice) return std::nullopt;
    const auto algo = std::bit_cast<Algo>(choice->algo);
    return is_valid(handle_, problem, algo) ? std::optional(algo) : std::nullopt;
  };
  if (options_.is_on) {
    if (const auto kept = usable(cache_.find(name))) return *kept;
  }
  const std::vector<Algo> candidates = candidates_for(handle_, problem);
  if (candidates.empty()) throw SystemError(fmt::format("cuBLASLt has no algorithm for {}", name));
  if (!options_.is_on || candidates.size() == 1) return candidates[0];
  GemmTimer timer(device_, handle_, shape, problem);
  if (!timer.has_memory()) return candidates[0];
  const auto timed = fastest(timer, candidates);
  if (!timed) return candidates[0];
  return usable(cache_.add(name, *timed)).value_or(std::bit_cast<Algo>(timed->algo));
}

}  // namespace tokamak::gpu
