#include "tokamak/parallel/buckets/bucket_layout.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/parallel/distribute.h"

namespace tokamak {
namespace {

// Vectors after a vector begin at multiples of 16 bytes in bf16, so that the biases of several
// matmuls can be one.
constexpr int64_t kVectorAlignment = 8;

constexpr auto kTpIndex = static_cast<size_t>(PlacementAxis::kTp);

int64_t align(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

bool accumulates_into_gradient(const Graph& g, const Accumulation& a, Value* leaf) {
  Value into = a.into;
  while (!g.producer(into).is_leaf()) {
    const auto before = g.producer(into).accumulation(into.out);
    if (!before) return false;
    into = before->into;
  }
  *leaf = into;
  return g.states()[g.producer(into).state].kind == StateKind::kGradient;
}

bool has_replicas(const Ranges& ranges) {
  for (size_t r = 1; r < ranges.size(); ++r) {
    if (ranges[r] == ranges[r - 1]) return true;
  }
  return false;
}

TensorType local_type(const TensorType& whole, const AxisPlacement& tp, int at) {
  TensorType type = whole;
  if (tp.shard.is_cut()) type.dims[tp.shard.dim] = (*tp.ranges)[at].size();
  return type;
}

class LayoutMaker {
 public:
  LayoutMaker(const Graph& global, const std::vector<NodePlacement>& placements,
              const RankContext& context)
      : global_(global), placements_(placements), context_(context) {}

  BucketLayout run() {
    find_tensors();
    index_tensors();
    find_contributions();
    for (Bucket& bucket : out_.buckets) lay_out(bucket);
    index_tensors();
    return std::move(out_);
  }

 private:
  // Makes a bucket for each (stage, module); norm and head of one stage share one, and a weight
  // that stages share has its own on each of their ranks.
  void find_tensors() {
    int32_t last_module = 0;
    std::map<int32_t, int32_t> leaf_of;  // state -> node
    std::map<int32_t, std::set<int>> uses;
    std::map<int32_t, int32_t> copy_of;  // cast node -> state
    for (int32_t i = 0; i < global_.size(); ++i) {
      const Node& n = global_.node(i);
      last_module = std::max(last_module, n.label.module);
      if (n.is_leaf()) leaf_of[n.state.index] = i;
      for (size_t k = 0; k < n.in.size(); ++k) {
        const Value v = n.in[k];
        const Node& from = global_.producer(v);
        int32_t state = -1;
        if (from.is_leaf() && global_.states()[from.state].kind == StateKind::kParameter)
          state = from.state.index;
        if (const auto it = copy_of.find(v.node); it != copy_of.end()) state = it->second;
        if (state < 0) continue;
        if (n.label.phase == Phase::kUnshard) {
          copy_of[i] = state;
          out_.compute = n.out[0].dtype;
        } else {
          const int stage = context_.stage_of(n.label.module);
          uses[state].insert(stage);
          if (!reads_low_precision(n, k)) reads_values_.insert({state, context_.pp_of(stage)});
          if (copy_of.empty()) out_.compute = from.out[0].dtype;
        }
      }
    }

    // Stage, module, tied state, whether tensors in low precision lie here, apart from others.
    using Key = std::tuple<int, int32_t, int32_t, bool>;
    const bool splits =
        context_.options->low_precision.gathers() && context_.degree(kShardAxes) > 1;
    std::map<Key, Bucket> made;
    for (const auto& [state, stages] : uses) {
      const StateDecl& decl = global_.states()[{state}];
      const AxisPlacement& tp = placements_[leaf_of.at(state)].out[0][kTpIndex];
      std::map<int, int> first_stage_on;  // pp -> stage
      for (const int stage : stages) first_stage_on.emplace(context_.pp_of(stage), stage);
      const bool is_tied = stages.size() > 1;
      for (const auto& [pp, stage] : first_stage_on) {
        // Norm and head need their weights at the same time.
        const int32_t module = std::min(decl.module, last_module - 1);
        const bool is_low_precision = !reads_values_.contains({state, pp});
        Bucket& bucket = made[{stage, module, is_tied ? state : -1, splits && is_low_precision}];
        bucket.has_low_precision = bucket.has_low_precision || is_low_precision;
        if (bucket.tensors.empty()) {
          bucket.first_state = state;
          bucket.moment_dtype = moment_dtype(decl);
        }
        bucket.block = decl.block;
        bucket.module = module;
        bucket.stage = stage;
        bucket.is_here = context_.runs_stage(stage);
        if (is_tied) {
          for (const auto& [other, unused] : first_stage_on) bucket.tie_ranks.push_back(other);
        }
        bucket.tensors.push_back(
            {.name = decl.name,
             .global = {state},
             .whole = decl.type,
             .local = local_type(decl.type, tp, context_.coordinate(MeshAxis::kTp)),
             .tp = tp,
             .gradient = !tp.shard.is_cut()         ? TpGradient::kWhole
                         : has_replicas(*tp.ranges) ? TpGradient::kReplicas
                                                    : TpGradient::kAlone,
             .init = decl.init,
             .is_tied_copy = context_.pp_of(*stages.begin()) != pp,
             .is_low_precision = is_low_precision,
             .stages = stages_on(stages, pp)});
      }
    }
    for (auto& [key, bucket] : made) {
      const auto& [stage, module, tied, is_apart] = key;
      bucket.name = fmt::format("s{}.m{}{}{}", stage, module, tied >= 0 ? ".tied" : "",
                                is_apart ? ".low" : "");
      bucket.traits.is_low_precision = is_apart;
      out_.buckets.push_back(std::move(bucket));
    }
  }

  std::vector<int> stages_on(const std::set<int>& stages, int pp) const {
    std::vector<int> here;
    for (const int s : stages) {
      if (context_.pp_of(s) == pp) here.push_back(s);
    }
    return here;
  }

  // Finds how many contributions each bucket's gradients get, and which are sums pending over tp.
  void find_contributions() {
    for (int32_t i = 0; i < global_.states().size(); ++i) {
      const StateDecl& decl = global_.states()[{i}];
      if (decl.kind == StateKind::kGradient)
        out_.parameter_of_gradient[i] = global_.states().find(decl.name.substr(5));
    }
    for (int32_t i = 0; i < global_.size(); ++i) {
      const Node& n = global_.node(i);
      for (const Accumulation& a : n.accumulations) {
        Value leaf;
        if (!accumulates_into_gradient(global_, a, &leaf)) continue;
        out_.gradient = global_.type(leaf).dtype;
        const StateId parameter = out_.parameter_of_gradient.at(global_.producer(leaf).state.index);
        const auto [b, t] = out_.where.at({parameter.index, context_.stage_of(n.label.module)});
        if (out_.buckets[b].contributions_left++ == 0) out_.buckets[b].first_contribution = i;
        out_.buckets[b].last_contribution = i;
        BucketTensor& tensor = out_.buckets[b].tensors[t];
        const Placement& p = placements_[i].out[a.out];
        for (const PlacementAxis axis : {PlacementAxis::kDp, PlacementAxis::kCp}) {
          TOK_CHECK(context_.degree(traits_of(axis).mesh) == 1 || p[axis].shard == kPartialSum,
                    "the gradient of {} is not a partial sum", tensor.name);
        }
        if (p[kTpIndex].shard == kPartialSum) tensor.gradient = TpGradient::kPartial;
      }
    }
    for (size_t b = 0; b < out_.buckets.size();) {
      const std::span<Bucket> module = module_buckets(out_.buckets, out_.buckets[b]);
      int32_t last = 0;
      for (const Bucket& bucket : module) last = std::max(last, bucket.last_contribution);
      for (Bucket& bucket : module) bucket.last_contribution = last;
      b += module.size();
    }
  }

  // A graph without an update has no moments.
  DType moment_dtype(const StateDecl& parameter) const {
    const StateId moment = global_.states().find(moment_name(kMomentNames[0], parameter.name));
    return global_.states()[moment.valid() ? moment : global_.states().find(parameter.name)]
        .type.dtype;
  }

  void index_tensors() {
    for (size_t b = 0; b < out_.buckets.size(); ++b) {
      for (size_t t = 0; t < out_.buckets[b].tensors.size(); ++t) {
        const BucketTensor& tensor = out_.buckets[b].tensors[t];
        for (const int stage : tensor.stages) out_.where[{tensor.global.index, stage}] = {b, t};
      }
    }
  }

  // Within each kind of gradient matrices come first, so that matrices stay neighbours and vectors
  // do too.
  void lay_out(Bucket& bucket) {
    const auto section = [](const BucketTensor& t) {
      return std::pair(t.gradient, t.local.dims.size() == 1);
    };
    std::stable_sort(
        bucket.tensors.begin(), bucket.tensors.end(),
        [&](const BucketTensor& a, const BucketTensor& b) { return section(a) < section(b); });
    const BucketTensor* before = nullptr;
    for (BucketTensor& tensor : bucket.tensors) {
      const bool follows =
          before != nullptr && section(*before) == section(tensor) && tensor.local.dims.size() == 1;
      tensor.begin = align(bucket.numel, follows ? kVectorAlignment : kBucketAlignment);
      bucket.numel = tensor.begin + tensor.local.numel();
      before = &tensor;
    }
    const int owners = context_.degree(bucket.traits.owners);
    bucket.numel = align(bucket.numel, kBucketAlignment * owners);
    bucket.slice = bucket.numel / owners;
  }

  const Graph& global_;
  const std::vector<NodePlacement>& placements_;
  const RankContext& context_;
  std::set<std::pair<int32_t, int>> reads_values_;  // (state, pp) of other ops than marked matmuls
  BucketLayout out_;
};

}  // namespace

std::span<Bucket> module_buckets(std::vector<Bucket>& buckets, const Bucket& bucket) {
  const auto is_of_module = [&](const Bucket& other) {
    return other.stage == bucket.stage && other.module == bucket.module &&
           other.tie_ranks.empty() == bucket.tie_ranks.empty() &&
           (bucket.tie_ranks.empty() || other.first_state == bucket.first_state);
  };
  const auto first = std::find_if(buckets.begin(), buckets.end(), is_of_module);
  return {first, std::find_if_not(first, buckets.end(), is_of_module)};
}

BucketLayout lay_out_buckets(const Graph& global, const std::vector<NodePlacement>& placements,
                             const RankContext& context) {
  return LayoutMaker(global, placements, context).run();
}

}  // namespace tokamak
