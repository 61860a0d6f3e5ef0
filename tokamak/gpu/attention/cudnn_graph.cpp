#include "tokamak/gpu/attention/cudnn_graph.h"

#include <algorithm>
#include <set>

#include "tokamak/core/error.h"

namespace tokamak::gpu {
namespace {

namespace fe = cudnn_frontend;
namespace modifiers = fe::graph::attn::score_modifiers;
using FeTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr auto kBF16 = fe::DataType_t::BFLOAT16;
constexpr auto kF32 = fe::DataType_t::FLOAT;
constexpr size_t kMostSettings = 1024;  // per engine

// Dims in cuDNN's order [batch, head, token, head dim] and where their elements lie.
struct Layout {
  std::vector<int64_t> dims, strides;
};

// Tokens of H heads each, which lie `step` elements from those of the previous token.
Layout tokens(int64_t B, int64_t S, int64_t H, int64_t D, int64_t step) {
  return {.dims = {B, H, S, D}, .strides = {S * step, D, step, 1}};
}

Layout queries(const AttentionShape& s) {
  return tokens(s.B, s.S, s.H, s.D, s.q_step());
}

Layout keys(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  Layout layout = tokens(s.B, s.T, s.K, s.D, s.kv_step());
  if (a.kv_tokens > 0) layout.strides[0] = a.kv_tokens * s.kv_step();
  return layout;
}

Layout outputs(const AttentionShape& s) {
  return tokens(s.B, s.S, s.H, s.D, s.H * s.D);
}

Layout statistics(const AttentionShape& s) {
  return {.dims = {s.B, s.H, s.S, 1}, .strides = {s.H * s.S, s.S, 1, 1}};
}

// Builds a graph and numbers its operands in the order in which they are made.
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

// Which keys a causal query sees: those up to the diagonal, at most `left` of them.
struct Band {
  fe::DiagonalAlignment_t alignment;
  std::optional<int64_t> left;
};

// A single query without a window sees all keys, for which cuDNN prefers no mask to a causal one.
std::optional<Band> band_of(const CudnnAttention& a) {
  if (!a.causal || (a.shape.S == 1 && a.window == 0)) return std::nullopt;
  Band band{.alignment = a.shape.S == a.shape.T ? fe::DiagonalAlignment_t::TOP_LEFT
                                                : fe::DiagonalAlignment_t::BOTTOM_RIGHT,
            .left = std::nullopt};
  if (a.window > 0) band.left = a.window;
  return band;
}

template <class Attributes>
Attributes attributes_of(const CudnnAttention& a) {
  Attributes attributes;
  attributes.set_name("attention").set_attn_scale(a.scale);
  const auto band = band_of(a);
  if (!band || a.cap > 0.0) return attributes;  // what caps scores also masks them
  attributes.set_diagonal_alignment(band->alignment).set_diagonal_band_right_bound(0);
  if (band->left) attributes.set_diagonal_band_left_bound(static_cast<int>(*band->left));
  return attributes;
}

struct Projections {
  FeTensor q, k, v;
};

Projections input_projections(GraphBuilder& b, const CudnnAttention& a) {
  const Layout kv = keys(a);
  return {.q = b.input(queries(a.shape)), .k = b.input(kv), .v = b.input(kv)};
}

// Caps scores and masks them, since cuDNN has no other masks than functions of scores. The
// derivative uses what the function has kept.
class ScoreCap {
 public:
  ScoreCap(const CudnnAttention& a, FeGraph& graph)
      : cap_(graph.tensor(static_cast<float>(a.cap))),
        band_(band_of(a)),
        queries_(a.shape.S),
        keys_(a.shape.T) {}

  auto function() const {
    return [*this](std::shared_ptr<FeGraph> graph, FeTensor scores) {
      const FeTensor capped = softcap_->forward(graph, scores, cap_);
      if (!band_) return capped;
      return modifiers::sliding_window_mask(graph, capped, band_->alignment, band_->left, 0,
                                            queries_, keys_, nullptr, nullptr);
    };
  }

  auto derivative() const {
    return [*this](std::shared_ptr<FeGraph> graph, FeTensor gradient) {
      return softcap_->backward(graph, gradient, cap_);
    };
  }

 private:
  std::shared_ptr<modifiers::Softcap> softcap_ = std::make_shared<modifiers::Softcap>();
  FeTensor cap_;
  std::optional<Band> band_;
  int64_t queries_;
  int64_t keys_;
};

std::shared_ptr<FeGraph> forward_graph(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  GraphBuilder b;
  const auto [q, k, v] = input_projections(b, a);
  auto attributes = attributes_of<fe::graph::SDPA_attributes>(a);
  if (a.cap > 0.0) attributes.set_score_mod(ScoreCap(a, *b.graph()).function());
  attributes.set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  const auto [o, lse] = b.graph()->sdpa(q, k, v, attributes);
  b.output(o, outputs(s));
  b.output(lse, statistics(s), kF32);
  return b.graph();
}

std::shared_ptr<FeGraph> backward_graph(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  GraphBuilder b;
  const auto [q, k, v] = input_projections(b, a);
  const FeTensor in_o = b.input(outputs(s));
  const FeTensor in_lse = b.input(statistics(s), kF32);
  const FeTensor in_do = b.input(outputs(s));
  auto attributes = attributes_of<fe::graph::SDPA_backward_attributes>(a);
  if (a.cap > 0.0) {
    const ScoreCap cap(a, *b.graph());
    attributes.set_score_mod(cap.function()).set_score_mod_bprop(cap.derivative());
  }
  attributes.set_deterministic_algorithm(a.deterministic);
  const auto [dq, dk, dv] = b.graph()->sdpa_backward(q, k, v, in_o, in_do, in_lse, attributes);
  b.output(dq, queries(s));
  b.output(dk, keys(a));
  b.output(dv, keys(a));
  return b.graph();
}

// Tries all values of all knobs together; once these are too many, further knobs one at a time.
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

}  // namespace

std::string to_string(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  return fmt::format(
      "attention{} [batch {}, queries {}, keys {}{}, heads {} over {}, head dim {}, {}{}{}{}]",
      a.backward ? " backward" : "", s.B, s.S, s.T,
      a.kv_tokens > 0 ? fmt::format(" of {}", a.kv_tokens) : "", s.H, s.K, s.D,
      a.window > 0 ? fmt::format("window {}", a.window)
      : a.causal   ? "causal"
                   : "full",
      a.cap > 0.0 ? fmt::format(", cap {}", a.cap) : "", a.deterministic ? ", deterministic" : "",
      s.is_packed ? ", packed" : "");
}

std::string describe(const CudnnAttention& a) {
  return fmt::format("{} by cuDNN {}", to_string(a), cudnnGetVersion());
}

double flops(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  return (a.backward ? 10.0 : 4.0) * static_cast<double>(s.B * s.H * s.D) *
         s.pairs(a.causal, a.window);
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

std::shared_ptr<FeGraph> graph_of(const CudnnAttention& a) {
  return a.backward ? backward_graph(a) : forward_graph(a);
}

Operands::Operands(const CudnnAttention& a, std::span<void* const> of_op) {
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

bool append_plan(FeGraph& graph, const Setting& setting) {
  return graph.create_execution_plan(setting.engine, {setting.knobs.begin(), setting.knobs.end()})
      .is_good();
}

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

}  // namespace tokamak::gpu
