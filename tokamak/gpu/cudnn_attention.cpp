#include "tokamak/gpu/cudnn_attention.h"

#include <array>
#include <map>
#include <memory>
#include <mutex>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "tokamak/core/error.h"

namespace tokamak::gpu {
namespace {

namespace fe = cudnn_frontend;
using FeTensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using FeGraph = fe::graph::Graph;

constexpr auto kBF16 = fe::DataType_t::BFLOAT16;
constexpr auto kF32 = fe::DataType_t::FLOAT;

std::string describe(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  return fmt::format(
      "attention{} [batch {}, queries {}, keys {}, heads {} over {}, head dim {}, {}{}] by cuDNN "
      "{}",
      a.backward ? " backward" : "", s.B, s.S, s.T, s.H, s.K, s.D, a.causal ? "causal" : "full",
      a.deterministic ? ", deterministic" : "", cudnnGetVersion());
}

[[noreturn]] void fail_cudnn(const std::string& what, const std::string& text) {
  throw SystemError(fmt::format("{}: {}", what, text));
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

// Of dense [B, S, H, D].
Layout tokens(int64_t B, int64_t S, int64_t H, int64_t D) {
  return {.dims = {B, H, S, D}, .strides = {S * H * D, D, H * D, 1}};
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
  const Layout q = tokens(s.B, s.S, s.H, s.D);
  const Layout kv = tokens(s.B, s.T, s.K, s.D);
  GraphBuilder b;
  const FeTensor in_q = b.input(q);
  const FeTensor in_k = b.input(kv);
  const FeTensor in_v = b.input(kv);
  auto attributes = attributes_of<fe::graph::SDPA_attributes>(a);
  attributes.set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  const auto [o, lse] = b.graph()->sdpa(in_q, in_k, in_v, attributes);
  b.output(o, q);
  b.output(lse, statistics(s), kF32);
  return b.graph();
}

std::shared_ptr<FeGraph> backward_graph(const CudnnAttention& a) {
  const AttentionShape& s = a.shape;
  const Layout q = tokens(s.B, s.S, s.H, s.D);
  const Layout kv = tokens(s.B, s.T, s.K, s.D);
  GraphBuilder b;
  const FeTensor in_q = b.input(q);
  const FeTensor in_k = b.input(kv);
  const FeTensor in_v = b.input(kv);
  const FeTensor in_o = b.input(q);
  const FeTensor in_lse = b.input(statistics(s), kF32);
  const FeTensor in_do = b.input(q);
  auto attributes = attributes_of<fe::graph::SDPA_backward_attributes>(a);
  attributes.set_deterministic_algorithm(a.deterministic);
  const auto [dq, dk, dv] =
      b.graph()->sdpa_backward(in_q, in_k, in_v, in_o, in_do, in_lse, attributes);
  b.output(dq, q);
  b.output(dk, kv);
  b.output(dv, kv);
  return b.graph();
}

// A handle, and the plans made with it. All calls are made under its lock: a handle has one stream
// at a time.
class Library {
 public:
  Library() { check(cudnnCreate(&handle_), "cudnnCreate"); }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  ~Library() { cudnnDestroy(handle_); }

  // Null where cuDNN has none.
  const FeGraph* plan(const CudnnAttention& wanted) {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = plans_.try_emplace(wanted);
    if (is_new) at->second = build(wanted);
    return at->second.get();
  }

  void run(const FeGraph& graph, std::span<void*> operands, void* workspace, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (!has_stream_ || stream != stream_) {
      check(cudnnSetStream(handle_, stream), "cudnnSetStream");
      stream_ = stream;
      has_stream_ = true;
    }
    fe::error_t status =
        graph.execute(handle_, operands.data(), static_cast<int>(operands.size()), workspace);
    if (status.is_bad()) fail_cudnn("attention by cuDNN", status.get_message());
  }

 private:
  std::shared_ptr<FeGraph> build(const CudnnAttention& wanted) {
    std::string reason;
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

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  std::map<CudnnAttention, std::shared_ptr<FeGraph>> plans_;
};

std::shared_ptr<Library> library_of(Device& device) {
  std::shared_ptr<void>& kept = device.attention_library();
  if (kept == nullptr) kept = std::make_shared<Library>();
  return std::static_pointer_cast<Library>(kept);
}

}  // namespace

bool has_cudnn() {
  return true;
}

Kernel prepare_cudnn_attention(const CudnnAttention& wanted, int64_t workspace_bytes,
                               Device& device) {
  const std::shared_ptr<Library> library = library_of(device);
  const FeGraph* plan = library->plan(wanted);
  if (plan == nullptr) return {};
  int64_t bytes = 0;
  fe::error_t status = plan->get_workspace_size(bytes);
  if (status.is_bad()) fail_cudnn(describe(wanted), status.get_message());
  if (bytes > workspace_bytes) {
    fail_cudnn(describe(wanted),
               fmt::format("wants {} bytes of workspace, the plan has {}", bytes, workspace_bytes));
  }
  return [library, plan](const KernelArgs& args) {
    std::array<void*, 9> operands{};
    size_t n = 0;
    for (const Tensor& t : args.in) operands[n++] = t.data;
    for (const Tensor& t : args.out) operands[n++] = t.data;
    library->run(*plan, std::span(operands).first(n), args.workspace, as_stream(args.stream));
  };
}

}  // namespace tokamak::gpu
