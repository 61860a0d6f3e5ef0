#include "tokamak/price/task/task_time.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tokamak/core/error.h"
#include "tokamak/price/task/low_precision.h"

namespace tokamak::price {
namespace {

constexpr int kMostSplits = 8;
// Rows that begin at whole lines of this many bytes are read at full rate.
constexpr int64_t kLineBytes = 128;
// The least size of a copy from global to shared memory beside the matmuls (PTX: cp.async).
constexpr double kLeastCopyBytes = 4.0;
// Rows of batched matmuls on tensor cores begin at whole vectors of this many elements of 2 bytes
// (NVIDIA, Matrix Multiplication Background, "Tensor Core Requirements").
constexpr int64_t kVectorElements = 8;
// Queries and keys of one tile of attention.
constexpr double kAttentionTile = 128.0;
// The rates of a machine file hold for this head dim.
constexpr double kRatedHeadDim = 128.0;
// Head dims are padded to whole steps of this.
constexpr int64_t kHeadDimStep = 64;
// Bytes per element of the operands in a plan that is made in bf16.
constexpr double kPlannedBytes = 2.0;

double product_rate(const Machine& machine, Precision precision) {
  const auto p = static_cast<size_t>(precision);
  const Device& d = machine.device;
  require_products(machine, precision);
  return d.peak_flops[p] * d.gemm.efficiency[p] * machine.software.power_derate;
}

// Returns the share of the rate that is left if rows do not begin at whole lines: a factor for each
// halving of their alignment.
double alignment_share(int64_t row_widths, Precision precision, const Device& d) {
  const auto unaligned = static_cast<uint64_t>(row_widths);
  if (unaligned == 0) return 1.0;
  const double bytes = element_bytes(precision) * std::ldexp(1.0, std::countr_zero(unaligned));
  if (bytes < kLeastCopyBytes) return d.gemm.odd_share;
  const double halvings = std::log2(static_cast<double>(kLineBytes) / bytes);
  return halvings <= 0.0 ? 1.0 : std::pow(d.gemm.alignment_share, halvings);
}

// The begin and end of tiles and kernels are stated as depth of bf16 and do not shrink with the
// precision. Returns how much more depth of this precision they are.
double depth_of_bf16(const Device& d, Precision precision) {
  const auto rate = [&](Precision p) { return d.peak_flops[p] * d.gemm.efficiency[p]; };
  const double bf16 = rate(Precision::kBf16);
  return bf16 > 0.0 ? std::max(1.0, rate(precision) / bf16) : 1.0;
}

double tile_seconds(const GemmTile& tile, int64_t m, int64_t n, int64_t k, int splits, double rate,
                    double overhead_scale, const Device& d, int free_sms) {
  const auto count = [](int64_t size, int step) { return (size + step - 1) / step; };
  const auto tiles = static_cast<double>(count(m, tile.m) * count(n, tile.n) * splits);
  const double waves = std::ceil(tiles / free_sms);
  const double depth = static_cast<double>(k) / splits + overhead_scale * d.gemm.k_overhead;
  const double work =
      2.0 * tile.m * tile.n * (waves * depth + overhead_scale * d.gemm.kernel_overhead);
  return work * d.num_sms / (rate * tile.efficiency);
}

// Returns the seconds to write the partial sums of a split matmul in fp32.
double split_seconds(int64_t m, int64_t n, int splits, const Machine& machine) {
  if (splits == 1) return 0.0;
  const Device& d = machine.device;
  return 4.0 * splits * static_cast<double>(m) * static_cast<double>(n) /
         (d.memory.bytes_per_s * d.memory.efficiency);
}

// Returns the seconds that a matmul's energy takes at the device's power.
double sustained_seconds(int64_t m, int64_t n, int64_t k, Precision precision, const Device& d) {
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return flops / (d.peak_flops[precision] * d.gemm.sustained_efficiency);
}

// Returns the share of a matmul's rate that its scales leave.
double gemm_share(const Cost& cost, const Device& d) {
  if (!cost.scales || *cost.scales == Cost::Scales::kTensor) return 1.0;
  return *cost.scales == Cost::Scales::kRows ? d.gemm.rows_share : d.gemm.parts_share;
}

// Returns the share of the memory's rate that a kernel reaches.
double memory_share(const Cost& cost, const Device& d) {
  if (!cost.scales) return 1.0;
  switch (*cost.scales) {
    case Cost::Scales::kTensor:
      return d.encode.tensor_share;
    case Cost::Scales::kRows:
      return d.encode.rows_share;
    case Cost::Scales::kParts:
      return d.encode.parts_share;
  }
  return 1.0;
}

// Whether a matmul's rate and power do not go with the clocks.
bool is_of_fixed_power(const Cost& cost, const Device& d) {
  return cost.scales && d.power.low_precision > 0.0;
}

const AttentionRates& rates_of(const Cost::Attention& attention, const Device& d) {
  return attention.is_backward ? d.attention_backward : d.attention_forward;
}

double operand_bytes(const Operand& o) {
  return static_cast<double>(o.type.bytes());
}

bool reads_output(const Task& task, size_t out, bool is_first) {
  const auto mode = task.accumulate[out];
  return mode == AccumulateMode::kAlways || (mode == AccumulateMode::kFirstMicrobatch && !is_first);
}

// Whether a group moves what tensor-parallel matmuls read or write; gradients that ranks of tp sum
// once a step feed no matmul.
bool is_beside_products(const GroupTable::Entry& group) {
  using enum GroupPurpose;
  return group.axes == AxisSet{MeshAxis::kTp} && group.purpose != kReduce &&
         group.purpose != kReplicas;
}

bool sums_gradients(const GroupTable::Entry& group) {
  using enum GroupPurpose;
  return group.purpose == kReduce || group.purpose == kReplicas || group.purpose == kTied;
}

// Returns the number of elements that are cast to a low precision for this matmul: a layer's input,
// its output gradient, and weights once a step.
double cast_elements(const Task& task, const TaskRun& run) {
  const auto elements = [&](size_t k) { return static_cast<double>(task.in[k].type.numel()); };
  return (run.casts ? elements(0) : 0.0) + (run.casts_weights && run.is_first ? elements(1) : 0.0);
}

}  // namespace

std::string_view name_of(Category category) {
  switch (category) {
    case Category::kGemm:
      return "GEMM";
    case Category::kAttention:
      return "attention";
    case Category::kMemoryBound:
      return "memory-bound";
    case Category::kExposedComm:
      return "exposed communication";
    case Category::kHost:
      return "host";
    case Category::kBubble:
      return "bubble";
    case Category::kOptimizer:
      return "optimizer";
  }
  return "?";
}

Category category_of(const Task& task, const Cost& cost) {
  if (task.rules->is_communication) return Category::kExposedComm;
  if (task.label.phase == Phase::kUpdate) return Category::kOptimizer;
  if (cost.kind == Cost::Kind::kGemm) return Category::kGemm;
  return cost.kind == Cost::Kind::kAttention ? Category::kAttention : Category::kMemoryBound;
}

double gemm_seconds(int64_t m, int64_t n, int64_t k, double bytes, Precision precision,
                    const Machine& machine, const ProductRun& run) {
  const Device& d = machine.device;
  const double rate =
      product_rate(machine, precision) * alignment_share(run.row_widths, precision, d);
  const double overhead_scale = depth_of_bf16(d, precision);
  const int free_sms = std::max(1, d.num_sms - run.held_sms);
  // Tiles are chosen for the whole device, even if a message holds a part of it.
  double best = HUGE_VAL;
  double taken = HUGE_VAL;
  for (const GemmTile& tile : d.gemm.tiles) {
    for (int splits = 1; splits <= kMostSplits; splits *= 2) {
      const auto on = [&](int num_sms) {
        return tile_seconds(tile, m, n, k, splits, rate, overhead_scale, d, num_sms) +
               split_seconds(m, n, splits, machine);
      };
      const double alone = on(d.num_sms);
      if (alone >= best) continue;
      best = alone;
      taken = run.held_sms > 0 ? on(free_sms) : alone;
    }
  }
  const double sustained = d.power.memory > 0.0 ? 0.0 : sustained_seconds(m, n, k, precision, d);
  return std::max({taken / run.rate, sustained, memory_seconds(bytes, machine)});
}

double memory_seconds(double bytes, const Machine& machine) {
  const Device& d = machine.device;
  if (bytes <= 0.0) return 0.0;
  return (bytes + d.memory.half_bytes) / (d.memory.bytes_per_s * d.memory.efficiency);
}

TaskTimes::TaskTimes(const GroupTable& groups, const Machine& machine, const PriceOptions& options)
    : machine_(machine), options_(options) {
  layouts_.reserve(groups.entries.size());
  for (const GroupTable::Entry& group : groups.entries) {
    layouts_.push_back(layout_of(group.ranks, machine));
    const bool is_beside = is_beside_products(group);
    if (is_beside && group.purpose == GroupPurpose::kGeneral)
      tp_group_ = static_cast<int>(layouts_.size()) - 1;
    exposed_.push_back(is_beside ? 1.0 - machine.software.tensor_parallel_overlap : 1.0);
    sums_gradients_.push_back(sums_gradients(group));
  }
}

double TaskTimes::seconds(const Task& task, const Cost& cost, const TaskRun& run) const {
  if (task.rules->is_communication) return task_communication_seconds(task, cost, run.is_low);
  return compute_seconds(task, cost, run) + machine_.device.launch_s;
}

int TaskTimes::link(const Task& task) const {
  if (!task.rules->is_communication) return 0;
  return link_of(layouts_[task.rules->group(task.op.get()).id]);
}

double TaskTimes::compute_seconds(const Task& task, const Cost& cost, const TaskRun& run) const {
  const double bytes = bytes_of(task, cost, run.is_first);
  switch (cost.kind) {
    case Cost::Kind::kGemm:
      TOK_CHECK(cost.product, "{} does not state its output", task.rules->name);
      return product_seconds(task, cost, bytes, run);
    case Cost::Kind::kAttention:
      TOK_CHECK(cost.attention, "{} states no attention", task.rules->name);
      return attention_seconds(cost, bytes, run.held_sms);
    case Cost::Kind::kMemory:
      return memory_bound_seconds(task, cost, bytes);
    default:
      TOK_CHECK(false, "{} states no kind of work", task.rules->name);
  }
}

// A kernel reads and writes host memory over the link at once, beside the device's memory.
double TaskTimes::memory_bound_seconds(const Task& task, const Cost& cost, double bytes) const {
  const Device& d = machine_.device;
  const double logit_bytes = machine_.software.logit_bytes;
  if (logit_bytes > 0.0 && cost.logits)
    return memory_seconds(logit_bytes * static_cast<double>(*cost.logits), machine_);
  const auto in_host = [](const std::vector<Operand>& operands) {
    double sum = 0.0;
    for (const Operand& o : operands) sum += o.arena == ArenaKind::kHost ? operand_bytes(o) : 0.0;
    return sum;
  };
  const double read = in_host(task.in);
  const double written = in_host(task.out);
  const bool is_update = task.label.phase == Phase::kUpdate;
  const double traffic = is_update ? 1.0 : machine_.software.elementwise_traffic;
  const double there =
      memory_seconds((bytes - read - written) * traffic / memory_share(cost, d), machine_);
  return std::max(
      {there, read / d.copies.from_host_bytes_per_s, written / d.copies.to_host_bytes_per_s});
}

double TaskTimes::bytes_of(const Task& task, const Cost& cost, bool is_first) const {
  double bytes = cost.bytes_read + cost.bytes_written;
  for (size_t k = 0; k < task.accumulate.size(); ++k) {
    if (reads_output(task, k, is_first)) bytes += operand_bytes(task.out[k]);
  }
  return bytes;
}

Precision TaskTimes::computes_in(const Task& task, const Cost& cost) const {
  const Precision planned = precision_of(cost.dtype);
  const bool is_lowered =
      planned == Precision::kBf16 && is_block_product(task, cost) && is_low(options_.linear);
  return is_lowered ? options_.linear : planned;
}

double TaskTimes::product_seconds(const Task& task, const Cost& cost, double bytes,
                                  const TaskRun& run) const {
  const Device& d = machine_.device;
  const double clocks = is_of_fixed_power(cost, d) ? 1.0 : std::pow(clock_, d.gemm.clock_exponent);
  ProductRun how{.rate = clocks * gemm_share(cost, d),
                 .held_sms = run.held_sms,
                 .row_widths = cost.row_widths};
  const Precision planned = precision_of(cost.dtype);
  const bool is_lowered = computes_in(task, cost) != planned;
  if (!is_lowered) return gemm_seconds(cost.m, cost.n, cost.k, bytes, planned, machine_, how);
  // In few bits both operands are read along the dim that is summed; for weight gradients these
  // rows are tokens.
  how.row_widths |= cost.k;
  how.rate *= machine_.software.low_share;
  const double width = element_bytes(options_.linear);
  bytes -= (1.0 - width / kPlannedBytes) * (operand_bytes(task.in[0]) + operand_bytes(task.in[1]));
  return gemm_seconds(cost.m, cost.n, cost.k, bytes, options_.linear, machine_, how) +
         cast_seconds(task, cost, run);
}

// Returns the seconds of casts for a matmul in few bits. Each element is read, once or in several
// passes, and written both as it lies and transposed.
double TaskTimes::cast_seconds(const Task& task, const Cost& cost, const TaskRun& run) const {
  if (computes_in(task, cost) == precision_of(cost.dtype)) return 0.0;
  const double bytes =
      machine_.software.cast_reads * kPlannedBytes + 2.0 * element_bytes(options_.linear);
  return memory_seconds(bytes * cast_elements(task, run), machine_);
}

double TaskTimes::attention_seconds(const Cost& cost, double bytes, int held_sms) const {
  const Device& d = machine_.device;
  const Precision precision = precision_of(cost.dtype);
  const Cost::Attention& s = *cost.attention;
  const bool is_backward = s.is_backward;
  const bool causal = s.causal;
  const auto queries = static_cast<double>(s.queries);
  const auto heads = static_cast<double>(s.heads);
  const Software& software = machine_.software;
  const bool is_fused = software.attention_pair_bytes <= 0.0;
  const double pairs = s.pairs;
  const double all_pairs = queries * static_cast<double>(s.keys);
  // Tiles of a forward are rows of queries, those of a backward columns of keys.
  const auto rows = static_cast<double>(is_backward ? s.keys : s.queries);
  const AttentionRates& rates = rates_of(s, d);
  // Tiles on the diagonal are computed whole, and so are those where a window begins.
  const double causal_pairs = queries * (static_cast<double>(s.keys) - 0.5 * (queries - 1.0));
  const bool has_window = causal && pairs < causal_pairs;
  const double edges = (causal ? 0.5 : 0.0) + (has_window ? 0.5 : 0.0);
  const double computed = std::min(pairs + edges * kAttentionTile * queries, all_pairs);
  const double whole = is_fused ? computed + rates.overhead * rows : all_pairs;
  const double flops = pairs > 0.0 ? cost.flops * whole / pairs : 0.0;
  const int64_t padded_dim = (s.head_dim + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep;
  const auto padded = static_cast<double>(padded_dim);
  const double columns = rates.softmax_columns;
  const double head_share = static_cast<double>(s.head_dim) / (padded + columns) *
                            (kRatedHeadDim + columns) / kRatedHeadDim;
  const double tiles = heads * std::ceil(rows / kAttentionTile) / std::max(1, d.num_sms - held_sms);
  const bool is_even = !is_fused || !causal || has_window || computed >= all_pairs;
  const double unevenness = is_even || pairs <= 0.0 ? 0.0 : all_pairs / pairs - 1.0;
  const double waves = std::max(std::ceil(tiles), tiles + rates.tail * unevenness);
  const double free_share = std::max(1.0, 1.0 * d.num_sms - held_sms) / d.num_sms;
  const double occupancy = tiles > 0.0 ? free_share * tiles / waves : 1.0;
  const double peak = d.peak_flops[precision];
  TOK_REQUIRE(peak > 0.0, "{}: {} has no rate of attention in {}", machine_.name, d.name,
              name_of(precision));
  // Scores and their product with values are batched matmuls.
  const bool is_vectorized = is_fused || s.head_dim % kVectorElements == 0;
  const double rate = !is_vectorized ? product_rate(machine_, Precision::kFp32)
                                     : peak * rates.efficiency * software.attention_share *
                                           software.power_derate * head_share * occupancy;
  const double pair_bytes =
      (is_backward ? 2.0 : 1.0) * software.attention_pair_bytes * all_pairs * heads;
  return std::max(flops / (rate * clock_), memory_seconds(bytes, machine_)) +
         memory_seconds(pair_bytes, machine_);
}

void TaskTimes::add_power(const Task& task, const Cost& cost, const TaskRun& run, double runs,
                          PowerUse& use) const {
  const Device& d = machine_.device;
  const double seconds = this->seconds(task, cost, run);
  if (task.rules->is_communication) {
    if (task.stream == 0) use.collective_s += runs * seconds;
    return;
  }
  if (cost.kind == Cost::Kind::kGemm && is_of_fixed_power(cost, d)) {
    use.low_s += runs * seconds;
  } else if (cost.kind == Cost::Kind::kGemm) {
    const Precision precision = computes_in(task, cost);
    const double peak = d.peak_flops[precision];
    // Alone, matmuls settle at the sustained efficiency, where they draw the power limit.
    const double cold = d.gemm.efficiency[precision];
    const double settled = std::min(1.0, d.gemm.sustained_efficiency / cold);
    const double cast_s = cast_seconds(task, cost, run);
    use.products_s += runs * (seconds - cast_s);
    use.memory_s += runs * cast_s;
    use.drawn_s +=
        runs * cost.flops / (peak * cold) * std::pow(settled, -1.0 - 1.0 / d.gemm.clock_exponent);
  } else if (cost.kind == Cost::Kind::kAttention) {
    const double peak =
        d.peak_flops[precision_of(cost.dtype)] * rates_of(*cost.attention, d).efficiency;
    use.attention_s += runs * seconds;
    use.drawn_s += runs * d.power.attention * cost.flops / peak;
  } else {
    use.memory_s += runs * seconds;
  }
}

double TaskTimes::message_seconds(double bytes, const GroupLayout& group) const {
  const auto sent = [&](double part) {
    return communication_seconds({.kind = Collective::kSendRecv, .bytes = part}, group, machine_);
  };
  if (!options_.splits_messages || tp_group_ < 0) return sent(bytes);
  const GroupLayout& tp = layouts_[tp_group_];
  return sent(bytes / tp.size) + collective_seconds(Collective::kAllGather, bytes, tp, machine_);
}

double TaskTimes::task_communication_seconds(const Task& task, const Cost& cost,
                                             bool is_low_message) const {
  const int id = task.rules->group(task.op.get()).id;
  TOK_CHECK(id >= 0 && id < std::ssize(layouts_), "{} names group {}", task.rules->name, id);
  TOK_CHECK(cost.collective, "{} states no collective", task.rules->name);
  const GroupLayout& group = layouts_[id];
  const bool is_sum =
      cost.collective == Collective::kReduceScatter || cost.collective == Collective::kAllReduce;
  const bool is_fewer_bytes = is_low_message && is_low(options_.linear) && !is_sum;
  const double width = is_fewer_bytes ? element_bytes(options_.linear) / kPlannedBytes : 1.0;
  const double bytes = cost.buffer_bytes() * width;
  if (cost.is_message) return message_seconds(bytes, group);
  return communication_seconds(
      {.kind = *cost.collective,
       .bytes = bytes,
       .sums_gradients = is_sum && sums_gradients_[id] && cost.dtype == DType::kF32,
       .exposed = exposed_[id]},
      group, machine_);
}

}  // namespace tokamak::price
