#include "tokamak/ops/test_op_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tokamak/comm/communicator.h"
#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/graph/differentiate.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/table.h"
#include "tokamak/plan/compile.h"

namespace tokamak {

#define X(stem, Type) \
  template <>         \
  OpCases cases_of<Type>();
TOK_FOR_EACH_OP(X)
#undef X

namespace testing {
namespace {

template <class T>
std::vector<std::byte> pack_as(const Numbers& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T x{};
    if constexpr (std::is_class_v<T>) {
      x = T(static_cast<float>(values[i]));
    } else {
      x = static_cast<T>(values[i]);
    }
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> pack_values(DType dtype, const Numbers& values) {
  switch (dtype) {
    case DType::kF32:
      return pack_as<float>(values);
    case DType::kF64:
      return pack_as<double>(values);
    case DType::kBF16:
      return pack_as<BF16>(values);
    case DType::kI32:
      return pack_as<int32_t>(values);
    case DType::kI64:
      return pack_as<int64_t>(values);
    case DType::kU8:
      return pack_as<uint8_t>(values);
    case DType::kE4M3:
      return pack_as<E4M3>(values);
    case DType::kE5M2:
      return pack_as<E5M2>(values);
    default:
      TOK_CHECK(false, "{}", name_of(dtype));
  }
}

// Runs one op between State leaves and fp64 result State.
class Bench {
 public:
  Bench(const OpCase& c, const Types& in) : case_(c), in_(in), graph_(states_) {
    for (size_t i = 0; i < in.size(); ++i) {
      const auto id = states_.declare(
          {.name = fmt::format("in{}", i), .type = in[i], .kind = StateKind::kInput});
      leaves_.push_back(graph_.read(id));
    }
  }

  std::vector<Value> add_op() { return graph_.add_node(case_.rules, case_.op, leaves_); }

  Value leaf(const std::string& name, const TensorType& type) {
    return graph_.read(states_.declare({.name = name, .type = type, .kind = StateKind::kInput}));
  }

  // Adds enough tasks that a graph pays for the stretch of them and the op.
  void pad() {
    const Value x = leaf("pad", {.dtype = DType::kF32, .dims = {1}});
    for (int i = 0; i < 4; ++i) {
      const auto id = states_.declare({.name = fmt::format("padded{}", i),
                                       .type = {.dtype = DType::kF64, .dims = {1}},
                                       .kind = StateKind::kResult});
      accumulate_into(graph_, graph_.apply(Accumulate{.dtype = DType::kF64}, {x}), graph_.read(id),
                      AccumulateMode::kFirstMicrobatch);
    }
  }

  void result(Value v) {
    const TensorType type{.dtype = DType::kF64, .dims = graph_.type(v).dims};
    const auto id = states_.declare(
        {.name = fmt::format("out{}", results_.size()), .type = type, .kind = StateKind::kResult});
    accumulate_into(graph_, graph_.apply(Accumulate{.dtype = DType::kF64}, {v}), graph_.read(id),
                    AccumulateMode::kFirstMicrobatch);
    results_.push_back(id);
  }

  std::vector<Numbers> run(const std::vector<Numbers>& values,
                           const std::vector<std::pair<std::string, Numbers>>& extra,
                           const RunOptions& options) {
    const StateLayout layout = lay_out(states_);
    const auto own = options.backend == nullptr
                         ? cpu::make_backend({.threads = options.threads,
                                              .reference_only = options.reference_only})
                         : nullptr;
    Backend& backend = options.backend == nullptr ? *own : *options.backend;
    Target target = backend.target();
    target.reference_only = options.reference_only;
    Plan plan = compile(graph_, layout, {.fuse_readers = options.fuses_readers, .target = target});
    plan.device_graphs = options.device_graphs;
    check_plan(plan);
    const Plan* plans[] = {&plan};
    const Memory memory(backend, plans);
    TOK_CHECK(memory.bytes() == plan.peak_bytes() &&
              backend.allocated_bytes() == plan.peak_bytes());
    const StateAccess access(memory, states_, layout);
    const auto world = make_single_world();
    const auto alone = world->make_group("alone", std::array{0});
    Communicator* const one[] = {alone.get()};
    Executor executor(plan, memory, options.groups.empty() ? one : options.groups);
    std::vector<ScheduleItem> items;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (const ScheduleItem& item : plan.schedule(1)) {
        items.push_back({.segment = item.segment, .microbatch = repeat, .is_first = repeat == 0});
      }
    }
    executor.warm_up(items);
    for (const ScheduleItem& item : items) {
      for (size_t i = 0; i < values.size(); ++i) write(access, fmt::format("in{}", i), values[i]);
      for (const auto& [name, numbers] : extra) write(access, name, numbers);
      executor.run(item);
    }
    std::vector<Numbers> out;
    for (const StateId id : results_) out.push_back(access.read<double>(id));
    return out;
  }

  Graph& graph() { return graph_; }

  const std::vector<Value>& leaves() const { return leaves_; }

 private:
  void write(const StateAccess& access, const std::string& name, const Numbers& values) const {
    const StateId id = states_.find(name);
    access.write(id, std::span<const std::byte>(pack_values(states_[id].type.dtype, values)));
  }

  const OpCase& case_;
  Types in_;
  StateTable states_;
  Graph graph_;
  std::vector<Value> leaves_;
  std::vector<StateId> results_;
};

}  // namespace

OpCases all_cases() {
  OpCases all;
  const auto add = [&](OpCases cases) {
    for (OpCase& c : cases.good) all.good.push_back(std::move(c));
    for (BadCase& c : cases.bad) all.bad.push_back(std::move(c));
  };
#define X(stem, Type) add(cases_of<Type>());
  TOK_FOR_EACH_OP(X)
#undef X
  return all;
}

std::string test_name(const OpRules* rules, const std::string& name) {
  std::string text = std::string(rules->name) + "_" + name;
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

double relative_error(const Numbers& got, const Numbers& want) {
  const auto norm = [](const Numbers& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  };
  Numbers diff(got.size());
  for (size_t i = 0; i < got.size(); ++i) diff[i] = got[i] - want[i];
  return norm(diff) / std::max(norm(want), 1e-30);
}

double accumulation_bound(DType dtype) {
  return dtype == DType::kBF16 ? 6e-3 : 1e-5;
}

Types types_as(const OpCase& c, DType dtype) {
  Types types = c.in;
  for (size_t i = 0; i < types.size(); ++i) {
    const bool stays = std::find(c.float_stays.begin(), c.float_stays.end(), static_cast<int>(i)) !=
                       c.float_stays.end();
    if (types[i].dtype == DType::kF32 && !stays) types[i].dtype = dtype;
  }
  return types;
}

std::vector<Numbers> fill_inputs(const OpCase& c, DType dtype) {
  std::vector<Numbers> all;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const Fill fill = i < c.fill.size() ? c.fill[i] : Fill{};
    Numbers values(static_cast<size_t>(c.in[i].numel()));
    for (size_t k = 0; k < values.size(); ++k) {
      const uint32_t word = random_u32(1, stream_of(c.name) + i, k);
      if (!fill.values.empty()) {
        values[k] = static_cast<double>(fill.values[k % fill.values.size()]);
      } else if (is_float(c.in[i].dtype)) {
        values[k] = fill.shift + fill.scale * normal_quantile(to_uniform(word));
        if (dtype == DType::kBF16)
          values[k] = static_cast<double>(static_cast<float>(BF16(static_cast<float>(values[k]))));
        if (dtype == DType::kF32) values[k] = static_cast<double>(static_cast<float>(values[k]));
      } else if (is_scaled(c.in[i].dtype)) {
        const auto value = static_cast<float>(64.0 * normal_quantile(to_uniform(word)));
        values[k] = static_cast<double>(static_cast<float>(E5M2(value)));  // exact in E4M3 too
      } else {
        values[k] = static_cast<double>(word % static_cast<uint64_t>(fill.limit));
      }
    }
    all.push_back(std::move(values));
  }
  return all;
}

std::vector<Numbers> run_op(const OpCase& c, const Types& in, const std::vector<Numbers>& values,
                            const RunOptions& options) {
  Bench bench(c, in);
  std::vector<Value> into;
  const std::vector<int> can =
      options.accumulate ? c.rules->accumulates(c.op.get()) : std::vector<int>{};
  const Types out_types = c.rules->infer(c.op.get(), in);
  into.reserve(can.size());
  for (const int k : can) into.push_back(bench.leaf(fmt::format("acc{}", k), out_types[k]));
  const std::vector<Value> out = bench.add_op();
  for (size_t k = 0; k < can.size(); ++k) {
    bench.graph().accumulate(out[can[k]], into[k], AccumulateMode::kFirstMicrobatch);
  }
  for (const Value v : out) bench.result(v);
  if (options.device_graphs) bench.pad();
  return bench.run(values, {}, options);
}

std::vector<Numbers> run_gradient(const OpCase& c, const Types& in,
                                  const std::vector<Numbers>& values,
                                  const std::vector<Numbers>& dy) {
  Bench bench(c, in);
  const std::vector<Value> out = bench.add_op();
  std::vector<Seed> seeds;
  std::vector<std::pair<std::string, Numbers>> extra;
  for (size_t k = 0; k < out.size(); ++k) {
    if (!is_float(bench.graph().type(out[k]).dtype) || dy[k].empty()) continue;
    const std::string name = fmt::format("dy{}", k);
    seeds.push_back({.of = out[k], .cotangent = bench.leaf(name, bench.graph().type(out[k]))});
    extra.emplace_back(name, dy[k]);
  }
  const auto sum = [](Graph& g, Value a, Value b) { return g.apply(Add{}, {a, b}); };
  const auto contributions = differentiate(bench.graph(), seeds, bench.leaves(), sum);
  std::vector<size_t> with_gradient;
  for (size_t i = 0; i < contributions.size(); ++i) {
    if (contributions[i].empty()) continue;
    Value total = contributions[i][0];
    for (size_t j = 1; j < contributions[i].size(); ++j)
      total = sum(bench.graph(), total, contributions[i][j]);
    bench.result(total);
    with_gradient.push_back(i);
  }
  const std::vector<Numbers> results = bench.run(values, extra, {.reference_only = true});
  std::vector<Numbers> gradients(in.size());
  for (size_t k = 0; k < with_gradient.size(); ++k) gradients[with_gradient[k]] = results[k];
  return gradients;
}

}  // namespace testing
}  // namespace tokamak
