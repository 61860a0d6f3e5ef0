#include "tokamak/ops/attention/attention.h"

#include <algorithm>
#include <array>

#include "tokamak/ops/attention/attention_blocks.h"
#include "tokamak/ops/attention/attention_decode.h"
#include "tokamak/ops/attention/context_attention.h"

namespace tokamak {
namespace {

// Checks q, k and v, or the operand that they are packed in.
void require_heads(std::string_view op, const Attention& a, std::span<const TensorType> in) {
  if (a.packed_kv_heads > 0) {
    const int64_t K = a.packed_kv_heads;
    TOK_REQUIRE(is_float(in[0].dtype) && in[0].dims.size() == 4 && in[0].dims[2] > 2 * K &&
                    (in[0].dims[2] - 2 * K) % K == 0 && !a.has_length,
                "{}: wanted float [batch, sequence, a multiple of {} query heads and twice {} "
                "key-value heads, head dim] and no length, got {}",
                op, K, K, to_string(in[0]));
    return;
  }
  for (const TensorType& t : in.first(3)) {
    TOK_REQUIRE(t.dims.size() == 4, "{}: wanted [batch, sequence, heads, head dim], got {}", op,
                to_string(t));
    TOK_REQUIRE(is_float(t.dtype) && t.dtype == in[0].dtype,
                "{}: wanted one float type, got q {}, k {}, v {}", op, to_string(in[0]),
                to_string(in[1]), to_string(in[2]));
  }
  require_same_dims(op, "k", in[1], "v", in[2]);
  const Dims& q = in[0].dims;
  const Dims& k = in[1].dims;
  TOK_REQUIRE(q[0] == k[0] && q[3] == k[3], "{}: batch or head dim differ: q is {}, k is {}", op,
              to_string(q), to_string(k));
  TOK_REQUIRE(k[2] > 0 && q[2] % k[2] == 0,
              "{}: {} query heads are not a multiple of {} key-value heads", op, q[2], k[2]);
}

// The number of tokens that attention_element can distinguish.
constexpr int64_t kMostTokens = int64_t{1} << 24U;

void require_attributes(std::string_view op, const Attention& a, const AttentionShape& s) {
  TOK_REQUIRE(a.dropout_p >= 0.0 && a.dropout_p < 1.0, "{}: wanted a dropout in [0, 1), got {}", op,
              a.dropout_p);
  TOK_REQUIRE(!a.has_length || a.dropout_p == 0.0, "{}: no dropout over a cache with a length", op);
  TOK_REQUIRE(a.dropout_p == 0.0 || (s.S < kMostTokens && s.T < kMostTokens),
              "{}: dropout counts up to {} tokens, got {}", op, kMostTokens, std::max(s.S, s.T));
  TOK_REQUIRE(a.cap >= 0.0, "{}: wanted a cap of 0 (none) or more, got {}", op, a.cap);
  TOK_REQUIRE(!a.causal || s.S <= s.T, "{}: {} causal queries over {} keys", op, s.S, s.T);
  TOK_REQUIRE(a.window >= 0 && (a.causal || a.window == 0),
              "{}: wanted a window of 0 (all keys) or more, and of causal attention, got {}{}", op,
              a.window, a.causal ? "" : " without a causal mask");
}

void require_rows(std::string_view op, const TensorType& rows, int64_t B) {
  TOK_REQUIRE(rows.dtype == DType::kI64 && rows.dims == Dims{B}, "{}: rows wants int64[{}], got {}",
              op, B, to_string(rows));
}

TensorType lse_type(const AttentionShape& s, DType dtype) {
  return {.dtype = gradient_dtype(dtype), .dims = {s.B, s.H, s.S}};
}

TensorType output_type(const AttentionShape& s, DType dtype) {
  return {.dtype = dtype, .dims = {s.B, s.S, s.H, s.D}};
}

void require_lse(std::string_view op, std::string_view name, const TensorType& t,
                 const AttentionShape& s, DType dtype) {
  const bool fits = t.dtype == DType::kF32 || t.dtype == gradient_dtype(dtype);
  const TensorType want = lse_type(s, dtype);
  TOK_REQUIRE(fits && t.dims == want.dims, "{}: {} wants {}, got {}", op, name, to_string(want),
              to_string(t));
}

Cost attention_cost(const AttentionShape& s, const Attention& a, bool is_backward,
                    std::span<const TensorType> in, std::span<const TensorType> out) {
  const double pairs = s.pairs(a.causal, a.window);
  Cost cost = memory_cost(in, out, 0.0);
  cost.kind = Cost::Kind::kAttention;
  cost.dtype = in[0].dtype;
  cost.attention = Cost::Attention{.heads = s.B * s.H,
                                   .queries = s.S,
                                   .keys = s.T,
                                   .head_dim = s.D,
                                   .pairs = pairs,
                                   .causal = a.causal,
                                   .is_backward = is_backward};
  const double products = is_backward ? 5.0 : 2.0;
  cost.flops = 2.0 * products * static_cast<double>(s.B * s.H * s.D) * pairs;
  return cost;
}

// Returns the op for the heads of one rank, if heads are cut.
std::optional<Attention> shard_of_heads(const Attention& a, const LocalContext& where) {
  if (where.strategy.in[0] != cut(2)) return std::nullopt;
  Attention shard = a;
  shard.first_head += where.in[0].begin;
  return shard;
}

// Whether a strategy cuts the sequence, which only cp may.
bool cuts_sequence(const LocalContext& where) {
  if (where.strategy.in[0] != cut(1)) return false;
  TOK_CHECK(where.axis == MeshAxis::kCp, "attention: {} cuts the sequence", name_of(where.axis));
  return true;
}

bool takes_context(const Attention& a, std::span<const TensorType> in) {
  return a.packed_kv_heads == 0 && a.causal && !a.has_length && in[0].dims[1] == in[1].dims[1];
}

// Numbers the inputs that an attention (`with_grad`: its gradient) has.
AttentionInputs number_inputs(const Attention& a, bool with_grad, bool with_dlse) {
  AttentionInputs inputs;
  inputs.num_parts = a.packed_kv_heads > 0 ? 1 : 3;
  inputs.count = inputs.num_parts;
  const auto number = [&](size_t& input, bool has) {
    if (has) input = inputs.count++;
  };
  number(inputs.o, with_grad);
  number(inputs.lse, with_grad);
  number(inputs.dy, with_grad);
  number(inputs.length, a.has_length);
  number(inputs.rows, a.dropout_p > 0.0);
  number(inputs.dlse, with_dlse);
  return inputs;
}

// A strategy's cuts by the role of an input; dq is cut like q, do like o, dlse like lse.
struct InputCuts {
  Shard q, kv, o, lse;
  Shard length = kReplicated;
  Shard rows = kReplicated;
};

std::vector<Shard> in_order(const AttentionInputs& inputs, const InputCuts& cuts) {
  std::vector<Shard> in(inputs.count, cuts.kv);
  const auto place = [&](size_t input, Shard shard) {
    if (input != AttentionInputs::kNone) in[input] = shard;
  };
  place(0, cuts.q);
  place(inputs.o, cuts.o);
  place(inputs.lse, cuts.lse);
  place(inputs.dy, cuts.o);
  place(inputs.length, cuts.length);
  place(inputs.rows, cuts.rows);
  place(inputs.dlse, cuts.lse);
  return in;
}

std::string describe_attention(const Attention& a) {
  std::string text = a.causal ? "causal" : "full";
  if (a.window > 0) text += fmt::format(" window={}", a.window);
  if (a.cap > 0.0) text += fmt::format(" cap={}", a.cap);
  if (a.scale != 0.0F) text += fmt::format(" scale={}", a.scale);
  if (a.packed_kv_heads > 0) text += fmt::format(" packed kv_heads={}", a.packed_kv_heads);
  if (a.has_length) text += " length";
  if (a.dropout_p > 0.0) text += fmt::format(" dropout={} stream={}", a.dropout_p, a.stream);
  return text;
}

bool is_empty(const AttentionShape& s) {
  return s.B * s.S * s.H * s.D == 0 || s.T * s.K == 0;
}

template <bool kBackward>
const Attention& attention_of(const void* op) {
  if constexpr (kBackward) return static_cast<const AttentionGrad*>(op)->forward;
  return *static_cast<const Attention*>(op);
}

template <bool kBackward>
AttentionShape shape_of(const void* op, const KernelTypes& types) {
  return attention_of<kBackward>(op).shape(types.in);
}

template <bool kBackward>
std::string takes_blocks(const void* op, const KernelTypes& types) {
  if (types.in[0].dtype != DType::kF32 && types.in[0].dtype != DType::kBF16)
    return fmt::format("no fast kernel for {}", name_of(types.in[0].dtype));
  const AttentionShape s = shape_of<kBackward>(op, types);
  if (s.D % 8 != 0) return fmt::format("head dim {} is not a multiple of 8", s.D);
  if (is_empty(s)) return "nothing to do";
  return {};
}

template <bool kBackward>
int64_t thread_workspaces(const void* op, const KernelTypes& types, const Target& target) {
  const AttentionWorkspace space(shape_of<kBackward>(op, types));
  return 4 * target.threads * (kBackward ? space.backward() : space.forward());
}

std::string takes_cudnn(const Attention& a, const KernelTypes& types) {
  const AttentionShape s = a.shape(types.in);
  if (types.in[0].dtype != DType::kBF16) return "for bfloat16";
  if (a.has_length) return "keys have a length";
  if (a.dropout_p > 0.0) return "dropout has masks of its own";
  if (s.D % 8 != 0 || s.D > 256)
    return fmt::format("head dim {}: wanted a multiple of 8 up to 256", s.D);
  if (is_empty(s)) return "nothing to do";
  return {};
}

std::string takes_one_query(const void* op, const KernelTypes& types) {
  const auto& a = *static_cast<const Attention*>(op);
  const AttentionShape s = a.shape(types.in);
  if (!a.has_length || s.S != 1) return "for one query over a cache";
  if (types.in[0].dtype == DType::kF64) return "for float32 and bfloat16";
  if (a.dropout_p > 0.0) return "has no dropout";
  if (a.packed_kv_heads > 0) return "q, k and v are packed";
  if (s.D > 256) return fmt::format("head dim {}: wanted at most 256", s.D);
  if (is_empty(s)) return "nothing to do";
  return {};
}

constexpr Variant kDecode{
    .name = kDecodeVariant,
    .backend = "gpu",
    .accepts = takes_one_query,
    .workspace = [](const void* op, const KernelTypes& types, const Target&) -> int64_t {
      const AttentionShape s = shape_of<false>(op, types);
      return s.B * s.H * decode_splits(s.T) * (s.D + 2) * size_of(DType::kF32);
    }};

template <bool kBackward>
std::span<const Variant> attention_variants() {
  static constexpr std::array kVariants{
      Variant{.name = "fast",
              .backend = "cpu",
              .accepts = takes_blocks<kBackward>,
              .workspace = thread_workspaces<kBackward>},
      kCpuReference,
      Variant{.name = "cudnn",
              .backend = "gpu",
              .library = "cudnn",
              .accepts =
                  [](const void* op, const KernelTypes& types) {
                    if constexpr (kBackward) {
                      const auto& self = *static_cast<const AttentionGrad*>(op);
                      const AttentionShape s = self.forward.shape(types.in);
                      if (self.has_dlse) return std::string("the statistics have a gradient");
                      if (s.S == 1 && s.T == 1) return std::string("one query of one key");
                      // cuDNN's own scratch comes after the sums of dO O.
                      if (s.B * s.H * s.S % 4 != 0) return std::string("scratch off 16 bytes");
                      return takes_cudnn(self.forward, types);
                    } else {
                      return takes_cudnn(*static_cast<const Attention*>(op), types);
                    }
                  },
              .workspace =
                  [](const void* op, const KernelTypes& types, const Target& target) {
                    return cudnn_attention_bytes(shape_of<kBackward>(op, types), kBackward,
                                                 target.deterministic);
                  }},
      Variant{.name = kGpuKernel.name,
              .backend = kGpuKernel.backend,
              .accepts = [](const void*, const KernelTypes& types) -> std::string {
                const int64_t D = types.in[0].dims[3];
                return D <= 256 ? "" : fmt::format("head dim {}: wanted at most 256", D);
              },
              .workspace = [](const void* op, const KernelTypes& types, const Target&) -> int64_t {
                // Sums of dO O, one number for each query of each head.
                if constexpr (!kBackward) return 0;
                const AttentionShape s = shape_of<kBackward>(op, types);
                return s.B * s.H * s.S * size_of(gradient_dtype(types.in[0].dtype));
              }}};
  return kVariants;
}

}  // namespace

AttentionShape AttentionShape::of(const TensorType& q, const TensorType& k) {
  return {.B = q.dims[0],
          .S = q.dims[1],
          .T = k.dims[1],
          .H = q.dims[2],
          .K = k.dims[2],
          .D = q.dims[3]};
}

// Backward needs the sums of dO O and dQ in fp32, dK and dV of every query head in bfloat16; where
// the order of the sums is fixed, dS in bfloat16 takes dQ's place. Tokens count in whole tiles,
// with some to spare.
int64_t cudnn_attention_bytes(const AttentionShape& s, bool backward, bool deterministic) {
  const int64_t spare = int64_t{16} << 20U;
  if (!backward) return spare;
  const int64_t heads = s.B * s.H;
  const int64_t S = round_up(s.S, 128);
  const int64_t T = round_up(s.T, 128);
  const int64_t D = round_up(s.D, 32);
  return heads * (S * 4 + (deterministic ? S * T * 2 : S * D * 4) + 2 * T * D * 2) + spare;
}

double AttentionShape::pairs(bool causal, int64_t window) const {
  if (!causal) return static_cast<double>(S) * static_cast<double>(T);
  // The queries of which the window hides nothing, and the others.
  const int64_t whole = window > 0 ? std::clamp<int64_t>(window - (T - S), 0, S) : S;
  return static_cast<double>(whole) * static_cast<double>(T - S) +
         static_cast<double>(whole) * static_cast<double>(whole + 1) / 2.0 +
         static_cast<double>(S - whole) * static_cast<double>(window);
}

AttentionShape Attention::shape(std::span<const TensorType> in) const {
  if (packed_kv_heads == 0) return AttentionShape::of(in[0], in[1]);
  const Dims& d = in[0].dims;
  return {.B = d[0],
          .S = d[1],
          .T = d[1],
          .H = d[2] - 2 * packed_kv_heads,
          .K = packed_kv_heads,
          .D = d[3],
          .is_packed = true};
}

Value AttentionInputs::at(std::span<const Value> in, size_t index) {
  return index == kNone ? Value{} : in[index];
}

AttentionInputs Attention::inputs() const {
  return number_inputs(*this, false, false);
}

Types Attention::infer(std::span<const TensorType> in) const {
  const AttentionInputs at = inputs();
  require_inputs(kName, in, at.count, at.count);
  require_heads(kName, *this, in);
  const AttentionShape s = shape(in);
  require_attributes(kName, *this, s);
  if (has_length) {
    const TensorType& length = in[at.length];
    TOK_REQUIRE(length.dtype == DType::kI32 && (length.dims == Dims{1} || length.dims == Dims{s.B}),
                "{}: length wants int32[1] or int32[{}], got {}", kName, s.B, to_string(length));
  }
  if (dropout_p > 0.0) require_rows(kName, in[at.rows], s.B);
  return {output_type(s, in[0].dtype), lse_type(s, in[0].dtype)};
}

std::vector<Strategy> Attention::place(std::span<const TensorType> in) const {
  const AttentionInputs at = inputs();
  const bool one_length = has_length && in[at.length].dims[0] == 1;
  const InputCuts batch{
      .q = cut(0), .kv = cut(0), .length = one_length ? kReplicated : cut(0), .rows = cut(0)};
  std::vector<Strategy> all{replicate(in.size(), 2),
                            {.in = in_order(at, batch), .out = {cut(0), cut(0)}}};
  if (packed_kv_heads > 0) return all;
  const InputCuts heads{.q = cut(2), .kv = in[1].dims[2] == 1 ? kReplicated : cut(2)};
  all.push_back({.in = in_order(at, heads), .out = {cut(2), cut(1)}});
  if (!takes_context(*this, in)) return all;
  const InputCuts sequence{.q = cut(1), .kv = cut(1)};
  all.push_back({.in = in_order(at, sequence), .out = {cut(1), cut(2)}, .only = MeshAxis::kCp});
  return all;
}

std::optional<AnyOp> Attention::localize(const LocalContext& where) const {
  if (auto shard = shard_of_heads(*this, where)) return any_op(*shard);
  if (!cuts_sequence(where)) return std::nullopt;
  return any_op(ContextAttention{.attention = *this, .group = where.group});
}

std::vector<Value> Attention::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  TOK_CHECK(!has_length, "attention over a cache has no gradient");
  TOK_CHECK(dy[0].valid(), "attention: only lse has a cotangent");
  const AttentionGrad grad{.forward = *this, .has_dlse = dy[1].valid()};
  const AttentionInputs from = inputs();
  const AttentionInputs at = grad.inputs();
  std::vector<Value> in = g.node(self).in;
  const Value rows = AttentionInputs::at(in, from.rows);
  in.resize(at.count);
  in[at.o] = {self, 0};
  in[at.lse] = {self, 1};
  in[at.dy] = dy[0];
  if (rows.valid()) in[at.rows] = rows;
  if (dy[1].valid()) in[at.dlse] = dy[1];
  return g.add(grad, in);
}

Cost Attention::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return attention_cost(shape(in), *this, false, in, out);
}

std::string Attention::describe() const {
  return describe_attention(*this);
}

std::span<const Variant> Attention::variants() {
  static const std::vector<Variant> kVariants = [] {
    std::vector<Variant> all{kDecode};
    const auto others = attention_variants<false>();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return kVariants;
}

AttentionInputs AttentionGrad::inputs() const {
  return number_inputs(forward, true, has_dlse);
}

Types AttentionGrad::infer(std::span<const TensorType> in) const {
  const AttentionInputs at = inputs();
  require_inputs(kName, in, at.count, at.count);
  require_heads(kName, forward, in);
  TOK_REQUIRE(!forward.has_length, "{}: no gradient over a cache with a length", kName);
  const AttentionShape s = forward.shape(in);
  require_attributes(kName, forward, s);
  const TensorType o = output_type(s, in[0].dtype);
  for (const size_t i : {at.o, at.dy}) {
    TOK_REQUIRE(in[i] == o, "{}: wanted {}, {} is {}", kName, to_string(o), i == at.o ? "o" : "do",
                to_string(in[i]));
  }
  require_lse(kName, "lse", in[at.lse], s, in[0].dtype);
  if (forward.dropout_p > 0.0) require_rows(kName, in[at.rows], s.B);
  if (has_dlse) require_lse(kName, "dlse", in[at.dlse], s, in[0].dtype);
  return {in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at.num_parts)};
}

std::vector<Strategy> AttentionGrad::place(std::span<const TensorType> in) const {
  const AttentionInputs at = inputs();
  std::vector<Strategy> all{replicate(in.size(), at.num_parts),
                            {.in = std::vector<Shard>(in.size(), cut(0)),
                             .out = std::vector<Shard>(at.num_parts, cut(0))}};
  if (at.num_parts == 1) return all;
  const bool one = in[1].dims[2] == 1;
  const Shard dkv = one ? kPartialSum : cut(2);
  const InputCuts heads{.q = cut(2), .kv = one ? kReplicated : cut(2), .o = cut(2), .lse = cut(1)};
  all.push_back({.in = in_order(at, heads), .out = {cut(2), dkv, dkv}});
  if (!takes_context(forward, in) || has_dlse) return all;
  const InputCuts sequence{.q = cut(1), .kv = cut(1), .o = cut(1), .lse = cut(2)};
  all.push_back(
      {.in = in_order(at, sequence), .out = {cut(1), cut(1), cut(1)}, .only = MeshAxis::kCp});
  return all;
}

std::optional<AnyOp> AttentionGrad::localize(const LocalContext& where) const {
  if (const auto shard = shard_of_heads(forward, where))
    return any_op(AttentionGrad{.forward = *shard, .has_dlse = has_dlse});
  if (!cuts_sequence(where)) return std::nullopt;
  return any_op(ContextAttentionGrad{.attention = forward, .group = where.group});
}

Cost AttentionGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return attention_cost(forward.shape(in), forward, true, in, out);
}

std::string AttentionGrad::describe() const {
  return describe_attention(forward);
}

std::span<const Variant> AttentionGrad::variants() {
  return attention_variants<true>();
}

}  // namespace tokamak
