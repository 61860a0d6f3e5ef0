#include "tokamak/ops/vocab/lm_head_loss.h"

#include <algorithm>
#include <numeric>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/softcap.h"
#include "tokamak/ops/layout/concat_rows.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/vocab/cross_entropy.h"

namespace tokamak {
namespace {

// Smaller chunks hold fewer logits but read w and rewrite dw more often.
constexpr int64_t kLeastRows = 128;

// The outputs that add up over chunks: the first chunk adds into the destination, if there is one.
class Sum {
 public:
  Sum(Graph& g, std::optional<Accumulation> destination) : g_(g), first_(destination) {}

  void add(Value part) {
    if (total_.valid()) {
      g_.accumulate(part, total_, AccumulateMode::kAlways);
    } else if (first_) {
      g_.accumulate(part, first_->into, first_->mode);
    }
    total_ = part;
  }

  Value total() const { return total_; }

 private:
  Graph& g_;
  std::optional<Accumulation> first_;
  Value total_;
};

// Returns the columns of w's product on the widest rank.
int64_t product_columns(const LmHeadLoss& op, int64_t own) {
  return op.columns.empty() ? own : *std::max_element(op.columns.begin(), op.columns.end());
}

// Returns the columns of logits that the widest rank holds: chunks are the same on all ranks.
int64_t logits_columns(const LmHeadLoss& op, int64_t own) {
  if (op.columns.empty()) return own;
  if (op.gather_logits) return std::accumulate(op.columns.begin(), op.columns.end(), int64_t{0});
  return product_columns(op, own);
}

// Returns the columns of the logits of `columns` rows of w.
int64_t padded_columns(const LmHeadLoss& op, int64_t columns, DType dtype) {
  if (columns * size_of(dtype) % 16 == 0) return columns;
  return (columns + op.column_multiple - 1) / op.column_multiple * op.column_multiple;
}

// Returns the rows of each chunk of `tokens`, if a row of logits takes `row_bytes` and the
// quantized operands take `quantized` more.
int64_t rows_of_chunk(const LmHeadLoss& op, int64_t tokens, int64_t row_bytes, int64_t quantized) {
  if (op.chunk_rows > 0) return op.chunk_rows;
  // Chunks are whole tiles of matmuls.
  const auto tiles = [](int64_t rows) { return rows / kLeastRows * kLeastRows; };
  const int64_t fitting = std::max(kLeastRows, tiles(op.chunk_bytes / row_bytes));
  if (quantized == 0) return fitting;
  const int64_t bytes = std::min(fitting, tokens) * row_bytes;
  const int64_t rows = std::max(kLeastRows, tiles(bytes / (row_bytes + quantized)));
  const int64_t chunks = (tokens + rows - 1) / rows;
  return tiles((tokens + chunks - 1) / chunks + kLeastRows - 1);
}

// Returns the first `rows` of `sum` as output `out` of n.
Value leading_rows(Graph& g, const Node& n, int out, Value sum, int64_t rows) {
  const Value valid = g.apply(SliceRows{.begin = 0, .end = rows}, {sum});
  const Value result = g.apply(Accumulate{.dtype = g.type(sum).dtype}, {valid});
  if (const auto to = n.accumulation(out)) g.accumulate(result, to->into, to->mode);
  return result;
}

// The results of a chunk's logits, from which this rank's columns of their gradient are made.
struct ChunkLoss {
  Value logits;
  Value stats;
  int64_t first_column = 0;
  int64_t valid_columns = 0;
};

// [N, own columns] of every member -> [N, all columns].
Value all_columns(Graph& g, const LmHeadLoss& op, Value logits) {
  const TensorType mine = g.type(logits);
  const int64_t longest = *std::max_element(op.columns.begin(), op.columns.end());
  const int64_t vocabulary = logits_columns(op, mine.dims[1]);
  const Value piece = g.apply(
      Split{.dim = 1, .sizes = {mine.dims[1]}, .row_numel = mine.dims[0] * longest}, {logits});
  const Value pieces = g.apply(Reshape{.dims = {op.group.size, -1}},
                               {g.apply(AllGather{.group = op.group}, {piece})});
  return g.apply(Join{.dim = 1, .sizes = op.columns, .dims = {mine.dims[0], vocabulary}}, {pieces});
}

ChunkLoss chunk_loss(Graph& g, const LmHeadLoss& op, Value logits, Value labels,
                     int64_t own_columns) {
  const bool is_padded = g.type(logits).dims[1] > own_columns;
  if (op.gather_logits && op.group.size > 1) {
    if (is_padded) logits = g.apply(SliceDim{.dim = 1, .begin = 0, .end = own_columns}, {logits});
    const Value all = all_columns(g, op, logits);
    return {.logits = all, .stats = g.apply(SoftmaxStats{}, {all, labels})};
  }
  const int64_t valid = is_padded ? own_columns : 0;
  const SoftmaxStats own{.first_column = op.first_column, .valid_columns = valid};
  Value stats = g.apply(own, {logits, labels});
  if (op.group.size > 1)
    stats = g.apply(CombineStats{}, {g.apply(AllGather{.group = op.group}, {stats})});
  return {
      .logits = logits, .stats = stats, .first_column = op.first_column, .valid_columns = valid};
}

// Returns this rank's columns of d loss / d logits, with 0 in the columns of padding.
Value chunk_gradient(Graph& g, const LmHeadLoss& op, const ChunkLoss& chunk, Value labels,
                     Value scale, int64_t own_columns, int64_t width) {
  const CrossEntropyGrad grad{.ignore_index = op.ignore_index,
                              .first_column = chunk.first_column,
                              .valid_columns = chunk.valid_columns,
                              .cap = op.cap};
  const Value dlogits = g.apply(grad, {chunk.logits, labels, chunk.stats, scale});
  if (!op.gather_logits || op.group.size == 1) return dlogits;
  const int64_t begin = op.first_column;
  const SliceDim own{
      .dim = 1, .begin = begin, .end = begin + own_columns, .zeros = width - own_columns};
  return g.apply(own, {dlogits});
}

}  // namespace

Types LmHeadLoss::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 4, 4);
  TOK_REQUIRE(chunk_rows >= 0, "lm_head_loss: chunk_rows is {}", chunk_rows);
  TOK_REQUIRE(cap >= 0.0, "lm_head_loss: wanted a cap of 0 (none) or more, got {}", cap);
  TOK_REQUIRE(column_multiple > 0, "lm_head_loss: column_multiple is {}", column_multiple);
  TOK_REQUIRE(in[1].dims.size() == 2 && in[0].dims.size() >= 2 &&
                  in[0].dims.back() == in[1].dims[1] && in[0].dtype == in[1].dtype,
              "lm_head_loss: x is {}, w is {}", to_string(in[0]), to_string(in[1]));
  const Dims leading(in[0].dims.begin(), in[0].dims.end() - 1);
  TOK_REQUIRE(in[2].dtype == DType::kI32 && in[2].dims == leading,
              "lm_head_loss: labels wants int32{}, got {}", to_string(leading), to_string(in[2]));
  TOK_REQUIRE(in[3].dtype == DType::kF32 && in[3].dims == Dims{1},
              "lm_head_loss: scale wants float32[1], got {}", to_string(in[3]));
  Types out{{.dtype = DType::kF64, .dims = {1}}};
  if (!with_gradient) return out;
  out.push_back(in[0]);
  out.push_back({.dtype = gradient_dtype(in[1].dtype), .dims = in[1].dims});
  return out;
}

std::vector<Strategy> LmHeadLoss::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all{replicate(4, with_gradient ? 3 : 1)};
  for (int d = 0; d + 1 < static_cast<int>(in[0].dims.size()); ++d) {
    all.push_back({.in = {cut(d), kReplicated, cut(d), kReplicated}, .out = {kPartialSum}});
    if (with_gradient) all.back().out = {kPartialSum, cut(d), kPartialSum};
  }
  all.push_back({.in = {kReplicated, cut(0), kReplicated, kReplicated}, .out = {kReplicated}});
  if (with_gradient) all.back().out = {kReplicated, kPartialSum, cut(0)};
  return all;
}

std::optional<AnyOp> LmHeadLoss::localize(const LocalContext& context) const {
  if (context.strategy.in[1] != cut(0)) return std::nullopt;
  LmHeadLoss local = *this;
  local.group = context.group;
  local.first_column += context.in[1].begin;
  TOK_CHECK(context.in_ranges.size() > 1 &&
                context.in_ranges[1].size() == static_cast<size_t>(context.group.size),
            "lm_head_loss: wanted the rows of w of all {} ranks", context.group.size);
  for (const Range& rows : context.in_ranges[1]) local.columns.push_back(rows.size());
  return any_op(std::move(local));
}

std::string LmHeadLoss::describe() const {
  std::string text = low_precision ? "low precision" : "";
  if (cap > 0.0) text += fmt::format("{}cap={}", text.empty() ? "" : ", ", cap);
  if (group.size == 1) return text;
  return fmt::format("{}{}columns from {}, group {}, {} of {}{}", text, text.empty() ? "" : ", ",
                     first_column, group.id, group.rank, group.size,
                     gather_logits ? ", logits gathered" : "");
}

std::vector<Value> LmHeadLoss::gradient(Graph&, int32_t self, std::span<const Value>) const {
  TOK_CHECK(with_gradient, "lm_head_loss without gradient is differentiated");
  return {{self, 1}, {self, 2}};
}

Cost LmHeadLoss::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.kind = Cost::Kind::kGemm;
  cost.m = rows_of(in[0]);
  cost.n = in[1].dims[0];
  cost.k = in[1].dims[1];
  cost.flops = (with_gradient ? 6.0 : 2.0) * static_cast<double>(cost.m) *
               static_cast<double>(cost.n) * static_cast<double>(cost.k);
  return cost;
}

std::vector<int> LmHeadLoss::accumulates() const {
  return with_gradient ? std::vector{0, 2} : std::vector{0};
}

std::vector<Value> LmHeadLoss::expand(Graph& g, const Node& n) const {
  const TensorType x_type = g.type(n.in[0]);
  const int64_t D = x_type.dims.back();
  const int64_t N = rows_of(x_type);
  const int64_t V = g.type(n.in[1]).dims[0];
  const int64_t width = padded_columns(*this, V, x_type.dtype);
  const int64_t most = padded_columns(*this, logits_columns(*this, V), x_type.dtype);
  const int64_t row_bytes = most * size_of(x_type.dtype);
  TOK_CHECK(row_bytes > 0, "lm_head_loss: {} columns", most);
  // Bytes of the gradient of logits and of x, with a scale for each 128 at most.
  const int64_t quantized = with_gradient ? (product_columns(*this, V) + D) * 33 / 32 : 0;
  const int64_t rows =
      rows_of_chunk(*this, N, row_bytes, low_precision && !long_chunks ? quantized : 0);
  const Value x = g.apply(Reshape{.dims = {-1, D}}, {n.in[0]});
  const Value labels = g.apply(Reshape{.dims = {-1}}, {n.in[2]});
  const SliceDim pad{.dim = 0, .begin = 0, .end = V, .zeros = width - V};
  const Value w = width == V ? n.in[1] : g.apply(pad, {n.in[1]});
  const Value scale = n.in[3];
  Sum loss(g, n.accumulation(0));
  Sum dw(g, width == V ? n.accumulation(2) : std::nullopt);
  std::vector<Value> dx;
  for (int64_t begin = 0; begin < N; begin += rows) {
    const SliceRows slice{.begin = begin, .end = std::min(N, begin + rows)};
    const Value x_part = g.apply(slice, {x});
    const Value labels_part = g.apply(slice, {labels});
    Value logits = g.apply(Linear{.low_precision = low_precision}, {x_part, w});
    if (cap > 0.0) logits = g.apply(Softcap{.cap = cap}, {logits});
    const ChunkLoss chunk = chunk_loss(g, *this, logits, labels_part, V);
    loss.add(g.apply(Nll{.ignore_index = ignore_index}, {chunk.stats, labels_part, scale}));
    if (!with_gradient) continue;
    const Value dlogits = chunk_gradient(g, *this, chunk, labels_part, scale, V, width);
    dx.push_back(g.apply(LinearGradInput{.low_precision = low_precision}, {dlogits, w}));
    dw.add(g.apply(LinearGradWeight{.low_precision = low_precision}, {x_part, dlogits}));
  }
  if (!with_gradient) return {loss.total()};
  const Value all = dx.size() == 1 ? dx[0] : g.apply(ConcatRows{}, dx);
  const Value dx_all = g.apply(Reshape{.dims = x_type.dims}, {all});
  if (width == V) return {loss.total(), dx_all, dw.total()};
  return {loss.total(), dx_all, leading_rows(g, n, 2, dw.total(), V)};
}

}  // namespace tokamak
