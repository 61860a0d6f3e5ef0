// What a mesh must equal one rank in, and a mesh's recipe as text.
#pragma once

#include <string>
#include <vector>

#include "tokamak/graph/plan.h"

#include "mesh_run.h"

namespace tokamak {

/// Three layers of 4 heads over 2, dim 32.
ModelSpec small_llama();

/// Gives the case its schedule and its stages.
void set_pipeline(MeshCase& c, const std::string& schedule, int chunks);

/// "llama pp2 dp_shard2 1F1B bf16 ..."
std::string describe(const MeshCase& c);

/// Trains on the mesh and on one rank (remembered) and compares. fp32: loss and gradient norm of
/// each step within 1e-5 relative, each tensor within 1e-5 |b| + 1e-3 lr steps sqrt(n), all
/// together within 1e-5. bf16: each loss at most 1.5 times as far from fp32 as one rank's is, plus
/// 1e-4 of it.
void expect_as_one_rank(const MeshCase& c);

/// One step: every tensor's gradient, as clipped, within 1e-5 of its norm (attention's biases, of
/// which a key's has none, only all together).
void expect_gradients_as_one_rank(const MeshCase& c);

/// For each task of a segment the first task of stream 0 that knows that it has ended (streams.h).
std::vector<int> first_known(const Segment& segment);

/// Mean over steps of (mesh - one rank) / fp32 loss, both in bf16.
double bf16_signed_difference(const MeshCase& c);

}  // namespace tokamak
