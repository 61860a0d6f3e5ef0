#include "tokamak/gpu/attention/cudnn_attention.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "tokamak/core/error.h"
#include "tokamak/core/timing.h"
#include "tokamak/gpu/attention/attention_timer.h"
#include "tokamak/gpu/attention/cudnn_graph.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/gemm/tuning.h"
#include "tokamak/gpu/gemm/tuning_cache.h"
#include "tokamak/gpu/loaded/library.h"

namespace tokamak::gpu {
namespace {

namespace fe = cudnn_frontend;

constexpr double kLeastFlops = 1e10;  // least problem worth timing: some 20 microseconds
constexpr double kBuildSeconds = 10.0;
constexpr double kBuildAllSeconds = 60.0;  // where every setting is tried
constexpr size_t kMostFinalists = 6;
constexpr double kFinalistsWithin = 1.1;  // times the first round's best time
constexpr int kRounds = 7;
constexpr double kNoise = 1.005;      // within this factor the library's order decides
constexpr double kTolerance = 0.015;  // relative, between two plans' results in bf16

// Times a graph's plans.
class PlanTimer {
 public:
  using Run = std::function<bool(int64_t plan, std::span<void*> operands, void* workspace,
                                 cudaStream_t stream)>;

  PlanTimer(Device& device, const CudnnAttention& wanted, int64_t workspace_bytes, bool lists,
            Run run)
      : wanted_(wanted),
        workspace_bytes_(workspace_bytes),
        lists_(lists),
        run_(std::move(run)),
        timer_(device, wanted, workspace_bytes) {}

  bool has_memory() const { return timer_.has_memory(); }

  // Builds the plans in order, for at most `build_seconds`, and times those that are usable.
  void try_plans(FeGraph& graph, std::span<const int64_t> plans, double build_seconds) {
    const auto begin = std::chrono::steady_clock::now();
    for (const int64_t plan : plans) {
      if (!tried_.empty() && seconds_since(begin) > build_seconds) break;
      try_plan(graph, plan);
    }
    if (lists_) {
      fmt::print(stderr, "{}: {} plans, {} of them timed, in {:.1f} s\n", describe(wanted_),
                 plans.size(), tried_.size(), seconds_since(begin));
    }
  }

  struct Timed {
    int64_t plan = -1;
    std::string name;
    double seconds = 0.0;
  };

  // The finalists take turns, so that the device's clock is the same for all of them.
  std::optional<Timed> fastest() {
    const std::vector<Timed> finalists = choose_finalists();
    if (finalists.empty()) return std::nullopt;
    std::vector<std::vector<double>> runs(finalists.size());
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < finalists.size(); ++i)
        runs[i].push_back(timer_.time(runner(finalists[i].plan)));
    std::vector<double> medians;
    for (size_t i = 0; i < runs.size(); ++i) {
      medians.push_back(median(runs[i]));
      if (lists_) tell("takes turns: " + finalists[i].name, medians[i]);
    }
    const double best = *std::min_element(medians.begin(), medians.end());
    size_t i = 0;
    while (medians[i] > kNoise * best) ++i;
    if (lists_) tell("takes " + finalists[i].name, medians[i]);
    return Timed{.plan = finalists[i].plan, .name = finalists[i].name, .seconds = medians[i]};
  }

 private:
  AttentionTimer::Run runner(int64_t plan) {
    return [this, plan](std::span<void*> operands, void* workspace, cudaStream_t stream) {
      return run_(plan, operands, workspace, stream);
    };
  }

  void tell(const std::string& what, double seconds) const {
    fmt::print(stderr, "  {}: {:.3f} ms, {:.1f} TFLOP/s\n", what, 1e3 * seconds,
               flops(wanted_) / seconds / 1e12);
  }

  void try_plan(FeGraph& graph, int64_t plan) {
    const auto begin = std::chrono::steady_clock::now();
    if (graph.build_plan_at_index(plan).is_bad()) return;
    const double build_seconds = seconds_since(begin);
    std::string name;
    int64_t bytes = 0;
    require(graph.get_plan_name_at_index(plan, name), "a plan of cuDNN");
    require(graph.get_workspace_size_plan_at_index(plan, bytes), "a plan of cuDNN");
    const std::string why = unfit(plan, bytes);
    if (!why.empty()) {
      if (lists_) fmt::print(stderr, "  {}: {}\n", name, why);
      return;
    }
    tried_.push_back({.plan = plan, .name = name, .seconds = timer_.time(runner(plan))});
    if (lists_) {
      tell(fmt::format("{} (workspace {} MiB, built in {:.2f} s)", name, bytes >> 20U,
                       build_seconds),
           tried_.back().seconds);
    }
  }

  // Returns why a plan may not be taken, or "". Results are compared with the first plan that runs.
  std::string unfit(int64_t plan, int64_t bytes) {
    if (bytes > workspace_bytes_) return fmt::format("wants {} bytes of workspace", bytes);
    const auto results = timer_.results(runner(plan));
    if (results.empty()) return "does not run";
    if (wanted_results_.empty()) {
      wanted_results_ = results;
      return {};
    }
    const double apart = difference(results, wanted_results_);
    if (!(apart <= kTolerance)) return fmt::format("differs by {} from the first plan", apart);
    const bool repeats = !wanted_.backward || wanted_.deterministic;
    if (repeats && timer_.results(runner(plan)) != results) return "has other bits in every run";
    return {};
  }

  std::vector<Timed> choose_finalists() const {
    std::vector<Timed> order = tried_;
    std::stable_sort(order.begin(), order.end(),
                     [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
    order.resize(std::min(order.size(), kMostFinalists));
    const double limit = order.empty() ? 0.0 : kFinalistsWithin * order[0].seconds;
    std::erase_if(order,
                  [&](const Timed& t) { return !std::isfinite(t.seconds) || t.seconds > limit; });
    std::sort(order.begin(), order.end(),
              [](const Timed& a, const Timed& b) { return a.plan < b.plan; });
    return order;
  }

  CudnnAttention wanted_;
  int64_t workspace_bytes_;
  bool lists_;
  Run run_;
  AttentionTimer timer_;
  std::vector<Timed> tried_;
  std::vector<std::vector<float>> wanted_results_;
};

void say_none(const CudnnAttention& wanted, const std::string& reason) {
  fmt::print(stderr, "note: no {} ({}): the slower kernel of this program runs instead\n",
             describe(wanted), reason);
}

// A handle, and the plans made with it. All calls are made under a lock: a handle has one stream at
// a time.
class Library {
 public:
  explicit Library(Device& device)
      : device_(device),
        options_(read_tuner_options("attention.json")),
        cache_(options_.file,
               describe_machine(device, fmt::format("cuDNN {}", cudnnGetVersion()))) {
    check(cudnnCreate(&handle_), "cudnnCreate");
  }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  ~Library() { cudnnDestroy(handle_); }

  // Returns null where cuDNN has no plan. Its own first choice may want more workspace.
  const FeGraph* plan(const CudnnAttention& wanted, int64_t workspace_bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<FeGraph>>& made = plans_[wanted];
    for (const std::shared_ptr<FeGraph>& graph : made) {
      int64_t bytes = 0;
      if (graph == nullptr) return nullptr;
      if (graph->get_workspace_size(bytes).is_good() && bytes <= workspace_bytes)
        return graph.get();
    }
    return made.emplace_back(build(wanted, workspace_bytes)).get();
  }

  void run(const FeGraph& graph, std::span<void*> operands, void* workspace, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    use_stream(stream);
    fe::error_t status =
        graph.execute(handle_, operands.data(), static_cast<int>(operands.size()), workspace);
    if (status.is_bad()) fail_cudnn("attention by cuDNN", status.get_message());
  }

 private:
  void use_stream(cudaStream_t stream) {
    if (has_stream_ && stream == stream_) return;
    check(cudnnSetStream(handle_, stream), "cudnnSetStream");
    stream_ = stream;
    has_stream_ = true;
  }

  std::shared_ptr<FeGraph> build(const CudnnAttention& wanted, int64_t workspace_bytes) {
    std::string reason;
    try {
      if (auto graph = build_tuned(wanted, workspace_bytes)) return graph;
    } catch (const std::exception& error) {
      fmt::print(stderr, "note: {} is not timed: {}\n", describe(wanted), error.what());
    }
    try {
      auto graph = graph_of(wanted);
      fe::error_t status = graph->build(handle_, {fe::HeurMode_t::A});
      if (status.is_good()) return graph;
      reason = status.get_message();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    say_none(wanted, reason);
    return nullptr;
  }

  // Returns null where timing is off, not worth it or impossible.
  std::shared_ptr<FeGraph> build_tuned(const CudnnAttention& wanted, int64_t workspace_bytes) {
    if (!options_.is_on || (flops(wanted) < kLeastFlops && !options_.lists)) return nullptr;
    if (!options_.lists) {
      for (const bool tries_all : {true, false}) {
        const auto kept = cache_.find(name_of(wanted, tries_all));
        if (!kept) continue;
        if (auto graph = build_setting(wanted, to_setting(*kept), workspace_bytes)) return graph;
      }
    }
    const auto setting = tune(wanted, workspace_bytes);
    return setting ? build_setting(wanted, *setting, workspace_bytes) : nullptr;
  }

  static std::string name_of(const CudnnAttention& wanted, bool tries_all) {
    return to_string(wanted) + (tries_all ? " of all settings" : "");
  }

  // Returns the graph before any plan of it is made.
  std::shared_ptr<FeGraph> lower(const CudnnAttention& wanted) {
    auto graph = graph_of(wanted);
    require(graph->validate(), "attention by cuDNN");
    require(graph->build_operation_graph(handle_), "attention by cuDNN");
    return graph;
  }

  std::shared_ptr<FeGraph> build_setting(const CudnnAttention& wanted, const Setting& setting,
                                         int64_t workspace_bytes) {
    auto graph = lower(wanted);
    if (!append_plan(*graph, setting) || graph->build_plan_at_index(0).is_bad()) return nullptr;
    int64_t bytes = 0;
    if (graph->get_workspace_size(bytes).is_bad() || bytes > workspace_bytes) return nullptr;
    return graph;
  }

  std::optional<Setting> tune(const CudnnAttention& wanted, int64_t workspace_bytes) {
    const auto graph = lower(wanted);
    using fe::HeurMode_t;
    if (graph->create_execution_plans({HeurMode_t::A, HeurMode_t::B, HeurMode_t::FALLBACK})
            .is_bad())
      return std::nullopt;
    // Only for its own suggestions does cuDNN say whether the order of sums is fixed.
    const bool tries_all = options_.tries_all && !wanted.deterministic;
    if (tries_all) append_all_settings(*graph);
    const std::vector<int64_t> plans = distinct_plans(*graph);
    if (plans.size() < 2 && !options_.lists) return std::nullopt;
    PlanTimer timer(device_, wanted, workspace_bytes, options_.lists,
                    [&](int64_t plan, std::span<void*> of_op, void* workspace, auto stream) {
                      use_stream(stream);
                      Operands operands(wanted, of_op);
                      return graph
                          ->execute_plan_at_index(handle_, operands.all().data(),
                                                  static_cast<int>(operands.all().size()),
                                                  workspace, plan)
                          .is_good();
                    });
    if (!timer.has_memory()) return std::nullopt;
    timer.try_plans(*graph, plans, tries_all ? kBuildAllSeconds : kBuildSeconds);
    const auto best = timer.fastest();
    if (!best) return std::nullopt;
    const auto setting = setting_of_plan(*graph, best->plan);
    const auto choice = to_choice(*setting, best->seconds);
    return choice ? to_setting(cache_.add(name_of(wanted, tries_all), *choice)) : setting;
  }

  Device& device_;
  TunerOptions options_;
  TuningCache cache_;
  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  std::map<CudnnAttention, std::vector<std::shared_ptr<FeGraph>>> plans_;  // for some workspaces
};

std::shared_ptr<Library> library_of(Device& device) {
  std::shared_ptr<void>& kept = device.attention_library();
  if (kept == nullptr) kept = std::make_shared<Library>(device);
  return std::static_pointer_cast<Library>(kept);
}

}  // namespace

std::string cudnn_version() {
  return is_here(CudaLibrary::kCudnn) ? dotted_version(cudnnGetVersion()) : "";
}

Kernel prepare_cudnn_attention(const CudnnAttention& wanted, int64_t workspace_bytes,
                               Device& device) {
  const std::shared_ptr<Library> library = library_of(device);
  const FeGraph* plan = library->plan(wanted, workspace_bytes);
  if (plan == nullptr) return {};
  int64_t bytes = 0;
  fe::error_t status = plan->get_workspace_size(bytes);
  if (status.is_bad()) fail_cudnn(describe(wanted), status.get_message());
  if (bytes > workspace_bytes) {
    const std::string reason =
        fmt::format("wants {} bytes of workspace, the plan has {}", bytes, workspace_bytes);
    if (wanted.cap == 0.0) fail_cudnn(describe(wanted), reason);
    say_none(wanted, reason);
    return {};
  }
  return [library, plan, wanted](const KernelArgs& args) {
    std::array<void*, 9> of_op{};
    size_t n = 0;
    for (const Tensor& t : args.in) of_op[n++] = t.data;
    for (const Tensor& t : args.out) of_op[n++] = t.data;
    Operands operands(wanted, std::span(of_op).first(n));
    library->run(*plan, operands.all(), args.workspace, as_stream(args.stream));
  };
}

}  // namespace tokamak::gpu
