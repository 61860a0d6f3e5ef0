#include "tests/mesh/drawn_case.h"

#include <string>
#include <vector>

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

// Deals the prime factors of a world size over axes that can take them.
Mesh draw_mesh(Draw& draw, const ModelSpec& model) {
  Mesh mesh;
  int rest = draw.one_of({2, 2, 3, 4, 4, 6, 8, 8, 12, 16});
  while (rest > 1) {
    const int prime = rest % 2 == 0 ? 2 : 3;
    const auto axis = static_cast<size_t>(draw.below(static_cast<int>(kNumMeshAxes)));
    const int grown = mesh.degrees[axis] * prime;
    const bool is_tp = axis == static_cast<size_t>(MeshAxis::kTp);
    const bool is_pp = axis == static_cast<size_t>(MeshAxis::kPp);
    if ((is_tp && grown > model.num_heads) || (is_pp && grown > 4)) continue;
    mesh.degrees[axis] = grown;
    rest /= prime;
  }
  return mesh;
}

// Any cuts between modules: stages may hold only the embedding, only the norm, only the head.
void draw_stages(Draw& draw, MeshCase& c) {
  std::vector<int>& stages = c.distribute.stage_of_module;
  const int num_stages = c.distribute.pipeline.num_stages();
  const auto num_modules = static_cast<int>(stages.size());
  int stage = 0;
  for (int m = 0; m < num_modules; ++m) {
    stages[static_cast<size_t>(m)] = stage;
    const int modules_left = num_modules - m - 1;
    const int stages_left = num_stages - stage - 1;
    if (stages_left > 0 && (modules_left == stages_left || draw.below(2) == 0)) ++stage;
  }
}

void draw_pipeline(Draw& draw, MeshCase& c) {
  const int pp = c.distribute.mesh.degree(MeshAxis::kPp);
  if (pp == 1) return;

  struct Choice {
    const char* name;
    int chunks;
  };

  const auto choice = draw.one_of<Choice>({{"GPipe", 1},
                                           {"1F1B", 1},
                                           {"Interleaved1F1B", 2},
                                           {"LoopedBFS", 2},
                                           {"InterleavedZeroBubble", 1},
                                           {"InterleavedZeroBubble", 2},
                                           {"ZBVZeroBubble", 2},
                                           {"DualPipeV", 2}});
  const bool fits = pp * choice.chunks <= c.model.num_layers + 2;
  set_pipeline(c, fits ? choice.name : "1F1B", fits ? choice.chunks : 1);
  if (draw.below(3) == 0) draw_stages(draw, c);
}

RecomputePolicy draw_recompute(Draw& draw) {
  RecomputePolicy policy{.mode = draw.one_of({Mode::kNone, Mode::kFull, Mode::kSelectiveOps,
                                              Mode::kSelectiveLayers, Mode::kMemoryBudget}),
                         .every_nth_block = 2,
                         .memory_budget = draw.one_of({0.2, 0.5, 0.8})};
  if (policy.mode == Mode::kSelectiveOps) policy.saved_ops = {"attention", "linear"};
  return policy;
}

}  // namespace

MeshCase draw_case(Draw& draw, const ModelSpec& model) {
  MeshCase c{.model = model};
  DistributeOptions& d = c.distribute;
  d.mesh = draw_mesh(draw, c.model);
  c.num_microbatches = draw.one_of<int64_t>({1, 2, 3, 4});
  if (d.mesh.degree(MeshAxis::kPp) > 1) c.num_microbatches *= 2;
  c.seq_len = draw.one_of<int64_t>({16, 13});
  c.global_batch = c.num_microbatches * draw.one_of<int64_t>({1, 2}) *
                   d.mesh.degree({MeshAxis::kDpReplicate, MeshAxis::kDpShard});
  c.recompute = draw_recompute(draw);
  c.compute = draw.below(3) == 0 ? DType::kBF16 : DType::kF32;
  if (c.compute == DType::kBF16) {
    // A mean over few tokens is mostly rounding noise, on one rank and on a mesh.
    c.seq_len *= 2;
    c.global_batch *= 4;
  }
  d.reshard = draw.one_of({Reshard::kDefault, Reshard::kAlways, Reshard::kNever});
  d.grad_store = draw.one_of({GradStore::kAuto, GradStore::kFull, GradStore::kSharded});
  d.sharding = draw.one_of({Sharding::kFsdp, Sharding::kFsdp, Sharding::kZero1, Sharding::kZero2});
  d.loss_parallel = draw.below(3) != 0;
  d.context =
      draw.one_of({ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses});
  const int cp = d.mesh.degree(MeshAxis::kCp);
  const int tp = d.mesh.degree(MeshAxis::kTp);
  if (cp > 1 && (c.model.num_kv_heads % (cp * tp) != 0 || c.model.num_heads % (cp * tp) != 0) &&
      d.context == ContextMethod::kUlysses)
    d.context = ContextMethod::kRing;
  draw_pipeline(draw, c);
  if (draw.flip()) c.logits_multiple = 32;
  d.gather_again = draw.flip();
  d.covers_collectives = draw.flip();
  d.covers_context = draw.flip();
  d.receives_ahead = draw.one_of({0, 1});
  d.overlaps_gathers = draw.flip();
  d.covers_forwards = draw.flip();
  return c;
}

}  // namespace tokamak
