// cuDNN's graphs of attention and the settings of their plans, for the files that call cuDNN.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "tokamak/gpu/attention/cudnn_attention.h"
#include "tokamak/gpu/gemm/tuning_cache.h"

namespace tokamak::gpu {

using FeGraph = cudnn_frontend::graph::Graph;

/// Returns "attention backward [batch 2, queries 8192, ..]" or the like, with cuDNN's version.
std::string to_string(const CudnnAttention& a);
std::string describe(const CudnnAttention& a);

double flops(const CudnnAttention& a);

/// Throws SystemError that says what failed.
[[noreturn]] void fail_cudnn(const std::string& what, const std::string& text);
void require(cudnn_frontend::error_t status, const char* what);
void check(cudnnStatus_t status, const char* call);

/// Returns the graph, not yet validated. Operands have the uids 1, 2, .. in the order of the
/// kernel's inputs, then its outputs.
std::shared_ptr<FeGraph> graph_of(const CudnnAttention& a);

/// The op's operands in the order of uids. Where they are packed, q, k and v are slices of one
/// operand and, in the backward, their gradients are slices of another.
class Operands {
 public:
  Operands(const CudnnAttention& a, std::span<void* const> of_op);

  std::span<void*> all() { return std::span(all_).first(count_); }

 private:
  std::array<void*, 9> all_{};
  size_t count_ = 0;
};

/// The engine and knobs of a plan, from which it can be made again.
struct Setting {
  int64_t engine = -1;
  std::map<cudnn_frontend::KnobType_t, int64_t> knobs;

  friend auto operator<=>(const Setting&, const Setting&) = default;
};

/// Returns a word for the engine, then one for each knob; nothing where they do not fit.
std::optional<TunedChoice> to_choice(const Setting& setting, double seconds);
Setting to_setting(const TunedChoice& choice);

std::optional<Setting> setting_of_plan(const FeGraph& graph, int64_t plan);

/// Appends a plan yet to be built; returns false where the engine does not take the setting.
bool append_plan(FeGraph& graph, const Setting& setting);

/// Appends, for every engine that takes the graph, plans of the settings near its first suggestion.
void append_all_settings(FeGraph& graph);

/// Returns the first plan of each setting.
std::vector<int64_t> distinct_plans(const FeGraph& graph);

}  // namespace tokamak::gpu
