#include "tokamak/gpu/cudnn_attention.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "tokamak/core/error.h"
#include "tokamak/gpu/attention_timer.h"
#include "tokamak/gpu/tuning.h"
#include "tokamak/gpu/tuning_cache.h"

namespace tokamak::gpu {
namespace {

namespace fe = cudnn_frontend;
using FeTensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using FeGraph = fe::graph::Graph;

constexpr auto kBF16 = fe::DataType_t::BFLOAT16;
constexpr auto kF32 = fe::DataType_t::FLOAT;

constexpr double kLeastFlops = 1e10;  // of a problem worth timing: some 20 microseconds
constexpr double kBuildSeconds = 10.0;
constexpr double kBuildAllSeconds = 60.0;  // where every setting is tried
constexpr size_t kMostSettings = 1024;     // of an engine
constexpr size_t kMostFinalists = 6;
constexpr double kFinalistsWithin = 1.1;  // of the first round's best time
constexpr int kRounds = 7;
constexpr double kNoise = 1.005;      // within it the library's order decides
constexpr double kTolerance = 0.015;  // between two plans' results in bf16

std::string to_string(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  return fmt::format(
      "attention{} [batch {}, queries {}, keys {}, heads {} over {}, head dim {}, {}{}{}]",
      a.backward ? " backward" : "", s.B, s.S, s.T, s.H, s.K, s.D, a.causal ? "causal" : "full",
      a.deterministic ? ", deterministic" : "", s.is_packed ? ", packed" : "");
}

std::string describe(const CudnnAttention& a) {
  return fmt::format("{} by cuDNN {}", to_string(a), cudnnGetVersion());
}

double flops(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  return (a.backward ? 10.0 : 4.0) * static_cast<double>(s.B * s.H * s.D) * s.pairs(a.causal);
}

[[noreturn]] void fail_cudnn(const std::string& what, const std::string& text) {
  throw SystemError(fmt::format("{}: {}", what, text));
}

void require(fe::error_t status, const char* what) {
  if (status.is_bad()) fail_cudnn(what, status.get_message());
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> more{};
  cudnnGetLastErrorString(more.data(), more.size());
  fail_cudnn(call, fmt::format("{}: {}", cudnnGetErrorString(status), more.data()));
}

// Dims in cuDNN's order [batch, head, token, head dim] and where their elements lie.
struct Layout {
  std::vector<int64_t> dims, strides;
};

// Of H heads a token, whose heads lie `step` elements from those of the one before.
Layout tokens(int64_t B, int64_t S, int64_t H, int64_t D, int64_t step) {
  return {.dims = {B, H, S, D}, .strides = {S * step, D, step, 1}};
}

Layout queries(const AttentionShape& s) {
  return tokens(s.B, s.S, s.H, s.D, s.q_step());
}

Layout keys(const AttentionShape& s) {
  return tokens(s.B, s.T, s.K, s.D, s.kv_step());
}

Layout outputs(const AttentionShape& s) {
  return tokens(s.B, s.S, s.H, s.D, s.H * s.D);
}

Layout statistics(const AttentionShape& s) {
  return {.dims = {s.B, s.H, s.S, 1}, .strides = {s.H * s.S, s.S, 1, 1}};
}

// Operands get the uids 1, 2, .. in the order of the kernel's inputs, then its outputs.
class GraphBuilder {
 public:
  GraphBuilder() {
    graph_->set_io_data_type(kBF16).set_intermediate_data_type(kF32).set_compute_data_type(kF32);
  }

  FeTensor input(const Layout& layout, fe::DataType_t type = kBF16) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(next_++)
                              .set_dim(layout.dims)
                              .set_stride(layout.strides)
                              .set_data_type(type));
  }

  void output(const FeTensor& tensor, const Layout& layout, fe::DataType_t type = kBF16) {
    tensor->set_output(true)
        .set_uid(next_++)
        .set_dim(layout.dims)
        .set_stride(layout.strides)
        .set_data_type(type);
  }

  const std::shared_ptr<FeGraph>& graph() const { return graph_; }

 private:
  std::shared_ptr<FeGraph> graph_ = std::make_shared<FeGraph>();
  int64_t next_ = 1;
};

// A single query sees all keys, which cuDNN would rather hear as no mask.
template <class Attributes>
Attributes attributes_of(const CudnnAttention& a) {
  Attributes attributes;
  attributes.set_name("attention").set_attn_scale(a.scale);
  if (a.causal && a.shape.S > 1) {
    attributes
        .set_diagonal_alignment(a.shape.S == a.shape.T ? fe::DiagonalAlignment_t::TOP_LEFT
                                                       : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  return attributes;
}

std::shared_ptr<FeGraph> forward_graph(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  const Layout q = queries(s);
  const Layout kv = keys(s);
  GraphBuilder b;
  const FeTensor in_q = b.input(q);
  const FeTensor in_k = b.input(kv);
  const FeTensor in_v = b.input(kv);
  auto attributes = attributes_of<fe::graph::SDPA_attributes>(a);
  attributes.set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  const auto [o, lse] = b.graph()->sdpa(in_q, in_k, in_v, attributes);
  b.output(o, outputs(s));
  b.output(lse, statistics(s), kF32);
  return b.graph();
}

std::shared_ptr<FeGraph> backward_graph(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  const Layout q = queries(s);
  const Layout kv = keys(s);
  GraphBuilder b;
  const FeTensor in_q = b.input(q);
  const FeTensor in_k = b.input(kv);
  const FeTensor in_v = b.input(kv);
  const FeTensor in_o = b.input(outputs(s));
  const FeTensor in_lse = b.input(statistics(s), kF32);
  const FeTensor in_do = b.input(outputs(s));
  auto attributes = attributes_of<fe::graph::SDPA_backward_attributes>(a);
  attributes.set_deterministic_algorithm(a.deterministic);
  const auto [dq, dk, dv] =
      b.graph()->sdpa_backward(in_q, in_k, in_v, in_o, in_do, in_lse, attributes);
  b.output(dq, q);
  b.output(dk, kv);
  b.output(dv, kv);
  return b.graph();
}

// The operands in the order of uids, of those of the op: where they are packed, slices of one
// stand for q, k, v, and backward of another for their gradients.
class Operands {
 public:
  Operands(const CudnnAttention& a, std::span<void* const> of_op) {
    const auto num_before_gradients = a.backward ? size_t{4} : of_op.size();
    for (size_t i = 0; i < of_op.size(); ++i) {
      if (!a.shape.is_packed || (i != 0 && i != num_before_gradients)) {
        all_[count_++] = of_op[i];
        continue;
      }
      for (size_t which = 0; which < 3; ++which)
        all_[count_++] = static_cast<BF16*>(of_op[i]) + a.shape.packed_begin(which);
    }
  }

  std::span<void*> all() { return std::span(all_).first(count_); }

 private:
  std::array<void*, 9> all_{};
  size_t count_ = 0;
};

// What a plan is made of, and can be made of again.
struct Setting {
  int64_t engine = -1;
  std::map<fe::KnobType_t, int64_t> knobs;

  friend auto operator<=>(const Setting&, const Setting&) = default;
};

// A word for the engine, then one for each knob. Nothing where they do not fit.
std::optional<TunedChoice> to_choice(const Setting& setting, double seconds) {
  TunedChoice choice{.microseconds = 1e6 * seconds};
  if (setting.knobs.size() >= choice.algo.size()) return std::nullopt;
  choice.algo[0] = static_cast<uint64_t>(setting.engine);
  size_t n = 1;
  for (const auto& [knob, value] : setting.knobs) {
    if (value < 0 || value > int64_t{UINT32_MAX}) return std::nullopt;
    choice.algo[n++] = (static_cast<uint64_t>(knob) << 32U) | static_cast<uint64_t>(value);
  }
  return choice;
}

Setting to_setting(const TunedChoice& choice) {
  Setting setting{.engine = static_cast<int64_t>(choice.algo[0])};
  for (size_t n = 1; n < choice.algo.size() && choice.algo[n] != 0; ++n) {
    const auto knob = static_cast<fe::KnobType_t>(choice.algo[n] >> 32U);
    setting.knobs[knob] = static_cast<int64_t>(choice.algo[n] & UINT32_MAX);
  }
  return setting;
}

std::optional<Setting> setting_of_plan(const FeGraph& graph, int64_t plan) {
  Setting setting;
  std::unordered_map<fe::KnobType_t, int64_t> knobs;
  if (graph.get_engine_and_knobs_at_index(plan, setting.engine, knobs).is_bad())
    return std::nullopt;
  setting.knobs = {knobs.begin(), knobs.end()};
  return setting;
}

// Appends a plan yet to be built; false where the engine does not take the setting.
bool append_plan(FeGraph& graph, const Setting& setting) {
  return graph.create_execution_plan(setting.engine, {setting.knobs.begin(), setting.knobs.end()})
      .is_good();
}

// All values of all knobs; of further knobs, once there are too many, one at a time.
std::vector<Setting> settings_near(const Setting& base, const std::vector<fe::Knob>& knobs) {
  std::vector<Setting> all{base};
  for (const fe::Knob& knob : knobs) {
    if (knob.type == fe::KnobType_t::NOT_SET) continue;  // newer than the frontend
    const int64_t step = std::max<int64_t>(knob.stride, 1);
    const auto num_values = static_cast<size_t>((knob.maxValue - knob.minValue) / step + 1);
    const bool fits = all.size() * num_values <= kMostSettings;
    const std::vector<Setting> from = fits ? all : std::vector{base};
    for (const Setting& setting : from) {
      for (int64_t value = knob.minValue; value <= knob.maxValue; value += step) {
        if (all.size() == kMostSettings) return all;
        all.push_back(setting);
        all.back().knobs[knob.type] = value;
      }
    }
  }
  return all;
}

// Of every engine that takes the graph, those near its first suggested setting.
void append_all_settings(FeGraph& graph) {
  std::map<int64_t, Setting> suggested;
  for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i)
    if (const auto setting = setting_of_plan(graph, i))
      suggested.emplace(setting->engine, *setting);
  int64_t num_engines = 0;
  require(graph.get_engine_count(num_engines), "engines of cuDNN");
  for (int64_t engine = 0; engine < num_engines; ++engine) {
    std::vector<fe::Knob> knobs;
    if (graph.get_knobs_for_engine(engine, knobs).is_bad()) continue;
    const Setting& base = suggested.emplace(engine, Setting{.engine = engine}).first->second;
    for (const Setting& setting : settings_near(base, knobs)) append_plan(graph, setting);
  }
}

std::vector<int64_t> distinct_plans(const FeGraph& graph) {
  std::vector<int64_t> plans;
  std::set<Setting> seen;
  for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    const auto setting = setting_of_plan(graph, i);
    if (setting && seen.insert(*setting).second) plans.push_back(i);
  }
  return plans;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

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

  // Builds the plans, in their order and for so long, and times those that are usable.
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

  // Those that did well take turns, so that the device's clock is the same for all of them.
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

  // Why a plan may not be taken. The first one that runs is what the others are held against.
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

// A handle, and the plans made with it. All calls are made under its lock: a handle has one stream
// at a time.
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

  // Null where cuDNN has none. Its own first choice may want more workspace.
  const FeGraph* plan(const CudnnAttention& wanted, int64_t workspace_bytes) {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = plans_.try_emplace(wanted);
    if (is_new) at->second = build(wanted, workspace_bytes);
    return at->second.get();
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
      auto graph = wanted.backward ? backward_graph(wanted) : forward_graph(wanted);
      fe::error_t status = graph->build(handle_, {fe::HeurMode_t::A});
      if (status.is_good()) return graph;
      reason = status.get_message();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    fmt::print(stderr, "note: no {} ({}): the slower kernel of this program runs instead\n",
               describe(wanted), reason);
    return nullptr;
  }

  // Null where timing is off, not worth it or impossible.
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

  // Before any plan of it is made.
  std::shared_ptr<FeGraph> lower(const CudnnAttention& wanted) {
    auto graph = wanted.backward ? backward_graph(wanted) : forward_graph(wanted);
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
    // What the order of sums depends on, cuDNN knows of its own suggestions alone.
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
  std::map<CudnnAttention, std::shared_ptr<FeGraph>> plans_;
};

std::shared_ptr<Library> library_of(Device& device) {
  std::shared_ptr<void>& kept = device.attention_library();
  if (kept == nullptr) kept = std::make_shared<Library>(device);
  return std::static_pointer_cast<Library>(kept);
}

}  // namespace

std::string cudnn_version() {
  const size_t v = cudnnGetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
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
    fail_cudnn(describe(wanted),
               fmt::format("wants {} bytes of workspace, the plan has {}", bytes, workspace_bytes));
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
