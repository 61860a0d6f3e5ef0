// A layer's quantizations and matmuls as a graph that tests run on the values of an oracle's file.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/comm/world.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"

namespace tokamak {

/// Returns the elements of a tensor of a file, or none if it has no such tensor.
template <class T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.find(name);
  if (view == nullptr) return {};
  std::vector<T> values(view->data.size() / sizeof(T));
  std::memcpy(values.data(), view->data.data(), view->data.size());
  return values;
}

/// One layer's quantizations and matmuls as a graph whose results are State.
class Layer {
 public:
  explicit Layer(const std::filesystem::path& path) : file_(path), graph_(states_) {}

  Value read(const std::string& name) {
    const TensorView& view = *file_.find(name);
    const StateId id = states_.declare({.name = name,
                                        .type = {.dtype = view.dtype, .dims = view.dims},
                                        .kind = StateKind::kInput});
    inputs_.emplace_back(id, view.data);
    return graph_.read(id);
  }

  /// Returns quantized values and inverse scales of `x`.
  std::pair<Value, Value> quantize(Value x, const Quantize& op) {
    const bool transposed = op.layout == Quantize::Layout::kTransposed;
    if (op.grid == ScaleGrid::kMx) {
      const std::vector<Value> out = graph_.add(op, {x});
      return {out[0], out[1]};
    }
    const Value amax = graph_.apply(Amax{.grid = op.grid,
                                         .transposed = transposed && op.grid != ScaleGrid::kTensor,
                                         .rounds_to = op.rounds_to},
                                    {x});
    const std::vector<Value> out = graph_.add(op, {x, amax});
    return {out[0], out[1]};
  }

  Graph& graph() { return graph_; }

  StateId keep(Value v) {
    const StateId id = states_.declare({.name = fmt::format("result{}", states_.size()),
                                        .type = {.dtype = DType::kF32, .dims = graph_.type(v).dims},
                                        .kind = StateKind::kResult});
    accumulate_into(graph_, graph_.apply(Accumulate{}, {v}), graph_.read(id),
                    AccumulateMode::kNever);
    return id;
  }

  void run() {
    const auto backend = cpu::make_backend({.threads = 1});
    layout_ = lay_out(states_);
    plan_.emplace(compile(graph_, layout_, {.target = backend->target()}));
    const Plan* plans[] = {&*plan_};
    const Memory memory(*backend, plans);
    const StateAccess access(memory, states_, layout_);
    for (const auto& [id, data] : inputs_) access.write(id, data);
    Executor executor(*plan_, memory, {});
    for (const ScheduleItem& item : plan_->schedule(1)) executor.run(item);
    for (int32_t i = 0; i < states_.size(); ++i) {
      if (states_[{i}].kind == StateKind::kResult) results_[i] = access.read<float>({i});
    }
  }

  const std::vector<float>& result(StateId id) const { return results_.at(id.index); }

  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
  StateTable states_;
  Graph graph_;
  StateLayout layout_;
  std::optional<Plan> plan_;
  std::vector<std::pair<StateId, std::span<const std::byte>>> inputs_;
  std::map<int32_t, std::vector<float>> results_;
};

}  // namespace tokamak
