// An op is a struct of attributes with pure rules. The graph knows no op by name; it holds rules by
// address.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/tensor_type.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/graph/placement.h"

namespace tokamak {

class Graph;
struct Node;
struct Value;

using Types = std::vector<TensorType>;

/// The local types for which a kernel is prepared.
struct KernelTypes {
  std::span<const TensorType> in;
  std::span<const TensorType> out;
};

/// The cost of a task on any machine, in counts and never in rates. Prices depend on nothing else
/// of an op, so each op states its kind and the fields of that kind (the generic test checks it).
struct Cost {
  enum class Kind : uint8_t {
    kUnstated,  ///< for views, which never run; no task with it has a price
    kMemory,
    kGemm,
    kAttention,
    kCollective
  };
  /// The result of a matmul of a layer y = x w: x w, dy w, or dy x.
  enum class Product : uint8_t { kOutput, kInputGradient, kWeightGradient };
  /// The granularity of scales over quantized values: one for a tensor, for each row, or for each
  /// part of a row, so that partial sums are scaled.
  enum class Scales : uint8_t { kTensor, kRows, kParts };
  enum class Collective : uint8_t {
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kAllToAll,
    kBroadcast,
    kSendRecv
  };

  /// The work of each of `heads`, for kAttention.
  struct Attention {
    int64_t heads = 0;  ///< over all samples
    int64_t queries = 0;
    int64_t keys = 0;
    int64_t head_dim = 0;
    double pairs = 0.0;  ///< (query, key) pairs per head
    bool causal = false;
    bool is_backward = false;
  };

  Kind kind = Kind::kUnstated;
  DType dtype = DType::kF32;    ///< not kMemory: dtype of the matmuls or messages
  int64_t m = 0, n = 0, k = 0;  ///< kGemm: one [m, k] x [k, n] matmul
  int64_t row_widths = 0;       ///< kGemm: bitwise or of the row widths of all three, in elements
  /// The scales of a quantized matmul, the finer of both operands', or of the values that a kMemory
  /// kernel quantizes.
  std::optional<Scales> scales;
  std::optional<Product> product;        ///< kGemm
  std::optional<Attention> attention;    ///< kAttention
  std::optional<Collective> collective;  ///< kCollective
  bool is_message = false;               ///< kCollective: from one pipeline stage to the next
  int group_size = 1;                    ///< kCollective: ranks that take part
  double bytes_sent = 0.0;  ///< kCollective: by this rank, as Communicator::Traffic counts
  double flops = 0.0;       ///< a multiply and an add count as two
  double bytes_read = 0.0;
  double bytes_written = 0.0;
  /// For kMemory, the number of logits of which it computes the loss; 0 where a kernel that
  /// computes the loss could compute this too.
  std::optional<int64_t> logits;

  /// Returns, for kCollective, the bytes of the whole buffer, gathered or before it is reduced.
  double buffer_bytes() const { return std::max(bytes_read, bytes_written); }
};

/// Counts every operand once and `flops_per_element` for each element of the first output.
Cost memory_cost(std::span<const TensorType> in, std::span<const TensorType> out,
                 double flops_per_element);

/// The best that matmuls and copies reach on a device; 0 = not known.
struct DeviceRates {
  double gemm_flops_bf16 = 0.0;
  double gemm_flops_f32 = 0.0;
  double bytes_per_s = 0.0;  ///< read and written both counted

  /// Returns the rate of matmuls with operands of this type.
  double gemm_flops(DType dtype) const {
    if (dtype == DType::kBF16) return gemm_flops_bf16;
    return dtype == DType::kF32 ? gemm_flops_f32 : 0.0;
  }
};

/// The rates of a machine, by which passes choose between ways to do the same work. The defaults
/// are those of an H100 in a host of eight; CPUs and devices that no machine file describes have
/// them too.
struct Rates {
  double flops = 600e12;                       ///< of large matmuls of two bytes an element
  double bytes_per_s = 3e12;                   ///< of kernels bound by memory
  double link_bytes_per_s = 200e9;             ///< that a rank sends within its host
  double network_bytes_per_s = 600e12 / 9000;  ///< that it sends to several hosts
  double launch_s = 3e-6;                      ///< between two kernels
  int num_sms = 132;                           ///< multiprocessors
  DeviceRates best{.gemm_flops_bf16 = 790e12, .gemm_flops_f32 = 50e12, .bytes_per_s = 4.2e12};
};

/// The machine for which a plan is made, read from the machine itself (train) or its file (plan).
struct Target {
  std::string backend = "cpu";
  int arch = 0;                         ///< GPU: 90 for sm_90; CPU: 0
  int threads = 1;                      ///< CPU worker threads; sizes workspaces
  bool reference_only = false;          ///< CPU: only `reference`; GPU: only `kernel`
  int devices_per_host = 0;             ///< GPUs per host where copy engines can gather, else 0
  bool deterministic = false;           ///< sums in a fixed order, also in a GPU's libraries
  std::vector<std::string_view> lacks;  ///< libraries that variants need but this machine lacks
  Rates rates;
};

/// One implementation of an op on one backend, as data; a pass picks the first that accepts.
struct Variant {
  std::string_view name;
  std::string_view backend;
  std::string_view library = {};  ///< the machine must have it (Target::lacks) or, "sm_90a", be it
  std::string (*accepts)(const void* op,
                         const KernelTypes& types) = nullptr;  ///< empty = yes, else the reason
  int64_t (*workspace)(const void* op, const KernelTypes& types,
                       const Target& target) = nullptr;  ///< bytes
};

/// The plain loops that specify an op; every op has it.
inline constexpr Variant kCpuReference{.name = "reference", .backend = "cpu"};

/// This project's own portable kernel on a GPU; every op has one, or a library's matmul.
inline constexpr Variant kGpuKernel{.name = "kernel", .backend = "gpu"};

/// The only variant of a communication op, which comm/ runs on any backend.
inline constexpr Variant kCommunication{.name = "comm", .backend = "any"};

/// Output `out` reuses the bytes of input `in`, always (`must`: the input is consumed) or where the
/// input's life ends here.
struct Alias {
  int out = 0;
  int in = 0;
  bool must = false;
};

/// How a view op addresses its input's storage, in elements.
struct Layout {
  Dims dims;
  Dims strides;
  int64_t offset = 0;
};

struct OpRules;

/// An op with its rules, type-erased.
struct AnyOp {
  const OpRules* rules = nullptr;
  std::shared_ptr<const void> op;

  template <class T>
  const T* as() const;
};

/// What `localize` learns about one mesh axis of size > 1 over which its node is not replicated.
struct LocalContext {
  MeshAxis axis = MeshAxis::kTp;
  CommGroup group;         ///< group of the axis, with this rank's place in it
  Strategy strategy;       ///< the chosen strategy
  std::vector<Range> in;   ///< by input: this rank's range of the cut dim, in global elements
  std::vector<Range> out;  ///< by output
  /// By input and output: every member's range, by its place in the group; empty if it is not cut.
  std::vector<std::vector<Range>> in_ranges, out_ranges;
};

/// The gradient rule of an op that has none; throws Bug naming the op.
std::vector<Value> no_gradient(const void*, Graph&, int32_t self, std::span<const Value>);

/// An op's rules, type-erased; the address is the op's identity.
struct OpRules {
  std::string_view name;
  bool is_view = false;
  bool is_composite = false;
  bool is_communication = false;
  bool has_side_effect = false;  ///< runs although nothing reads its outputs
  bool is_sum = false;           ///< returns the sum of its two inputs
  bool is_kept = false;          ///< kept for the backward whatever a recompute policy says
  Types (*infer)(const void*, std::span<const TensorType>) = nullptr;
  std::vector<Strategy> (*place)(const void*, std::span<const TensorType>) = nullptr;
  /// Takes the cotangents of the outputs of node `self`; returns those of its inputs.
  std::vector<Value> (*gradient)(const void*, Graph&, int32_t self,
                                 std::span<const Value>) = no_gradient;
  Cost (*cost)(const void*, std::span<const TensorType>, std::span<const TensorType>) = nullptr;
  std::span<const Variant> (*variants)() = nullptr;
  std::vector<Alias> (*aliases)(const void*) = nullptr;
  std::vector<int> (*accumulates)(const void*) = nullptr;
  Layout (*view)(const void*, const Layout&) = nullptr;
  std::vector<Value> (*expand)(const void*, Graph&, const Node&) = nullptr;
  std::string (*describe)(const void*) = nullptr;
  std::optional<AnyOp> (*localize)(const void*, const LocalContext&) = nullptr;
  const CommGroup& (*group)(const void*) = nullptr;  ///< of a communication op
  /// Returns a communication op as another group runs it.
  std::shared_ptr<const void> (*in_group)(const void*, const CommGroup&) = nullptr;
  std::optional<AnyOp> (*emitting)(const void*, const AnyOp& forward) = nullptr;
  std::optional<AnyOp> (*after)(const void*, const AnyOp& producer) = nullptr;
};

/// The contract of an op. These optional members are found by name: `gradient(g, self, dy)`,
/// `aliases()`, `accumulates()` (outputs that can add into their destination), `view(layout)`
/// (makes it a view, without a kernel), `expand(g, node)` (makes it a composite, without a kernel),
/// `describe()` (attributes as text), `localize(context)` (the op of a shard: a changed copy, or
/// another op), `group` (a CommGroup member, makes it a communication op, which has no kernel and
/// is run by comm/), `kHasSideEffect` (never dead), `kIsKept` (never recomputed). Fusion uses
/// `kIsSum`, `emitting(forward)` (turns a gradient whose first inputs are those of `forward` into
/// one that also outputs the result of `forward`, bit for bit), and `after(producer)` (joins an op
/// with the `producer` whose first output is its first input; the joint op reads what the producer
/// reads, then the op's other inputs, and returns the outputs of both).
template <class T>
concept Op = requires(const T op, std::span<const TensorType> types) {
  { T::kName } -> std::convertible_to<std::string_view>;
  { op.infer(types) } -> std::same_as<Types>;
  { op.place(types) } -> std::same_as<std::vector<Strategy>>;
  { op.cost(types, types) } -> std::same_as<Cost>;
  { T::variants() } -> std::same_as<std::span<const Variant>>;
};

namespace detail {

template <class T>
const T& as(const void* op) {
  return *static_cast<const T*>(op);
}

template <class T>
constexpr OpRules rules_of() {
  using Span = std::span<const TensorType>;
  OpRules rules{.name = T::kName};
  rules.infer = [](const void* op, Span in) { return as<T>(op).infer(in); };
  rules.place = [](const void* op, Span in) { return as<T>(op).place(in); };
  if constexpr (requires(const T op, Graph& g, int32_t self, std::span<const Value> dy) {
                  op.gradient(g, self, dy);
                }) {
    rules.gradient = [](const void* op, Graph& g, int32_t self, std::span<const Value> dy) {
      return as<T>(op).gradient(g, self, dy);
    };
  }
  rules.cost = [](const void* op, Span in, Span out) { return as<T>(op).cost(in, out); };
  rules.variants = [] { return T::variants(); };
  rules.aliases = [](const void* op) -> std::vector<Alias> {
    if constexpr (requires { as<T>(op).aliases(); }) return as<T>(op).aliases();
    return {};
  };
  rules.accumulates = [](const void* op) -> std::vector<int> {
    if constexpr (requires { as<T>(op).accumulates(); }) return as<T>(op).accumulates();
    return {};
  };
  rules.localize = [](const void* op, const LocalContext& context) -> std::optional<AnyOp> {
    if constexpr (requires { as<T>(op).localize(context); }) return as<T>(op).localize(context);
    return std::nullopt;
  };
  rules.describe = [](const void* op) -> std::string {
    if constexpr (requires { as<T>(op).describe(); }) return as<T>(op).describe();
    return {};
  };
  if constexpr (requires(const T op, const Layout& in) { op.view(in); }) {
    rules.is_view = true;
    rules.view = [](const void* op, const Layout& in) { return as<T>(op).view(in); };
  }
  if constexpr (requires(const T op, Graph& g, const Node& n) { op.expand(g, n); }) {
    rules.is_composite = true;
    rules.expand = [](const void* op, Graph& g, const Node& n) { return as<T>(op).expand(g, n); };
  }
  if constexpr (requires(const T op) {
                  { op.group } -> std::convertible_to<CommGroup>;
                  requires !requires(Graph & g, const Node& n) {
                    op.expand(g, n);
                  };
                }) {
    rules.is_communication = true;
    rules.group = [](const void* op) -> const CommGroup& { return as<T>(op).group; };
    rules.in_group = [](const void* op, const CommGroup& group) -> std::shared_ptr<const void> {
      T mine = as<T>(op);
      mine.group = group;
      return std::make_shared<const T>(std::move(mine));
    };
  }
  if constexpr (requires { T::kHasSideEffect; }) rules.has_side_effect = T::kHasSideEffect;
  if constexpr (requires { T::kIsSum; }) rules.is_sum = T::kIsSum;
  if constexpr (requires { T::kIsKept; }) rules.is_kept = T::kIsKept;
  rules.emitting = [](const void* op, const AnyOp& forward) -> std::optional<AnyOp> {
    if constexpr (requires { as<T>(op).emitting(forward); }) return as<T>(op).emitting(forward);
    return std::nullopt;
  };
  rules.after = [](const void* op, const AnyOp& producer) -> std::optional<AnyOp> {
    if constexpr (requires { as<T>(op).after(producer); }) return as<T>(op).after(producer);
    return std::nullopt;
  };
  return rules;
}

}  // namespace detail

template <Op T>
inline constexpr OpRules kRules = detail::rules_of<T>();

template <class T>
const T* AnyOp::as() const {
  return rules == &kRules<T> ? static_cast<const T*>(op.get()) : nullptr;
}

/// Type-erases an op, for rules that name another op.
template <Op T>
AnyOp any_op(T op) {
  return {.rules = &kRules<T>, .op = std::make_shared<const T>(std::move(op))};
}

/// Returns the reference on a CPU and one kernel on a GPU.
std::span<const Variant> one_kernel();

/// Returns only kCommunication.
std::span<const Variant> communication_only();

}  // namespace tokamak
