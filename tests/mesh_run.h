// Trains a small model for a few steps on a mesh of threads, for comparing meshes with one rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/train/planned_run.h"

namespace tokamak {

struct MeshCase {
  ModelSpec model;
  DistributeOptions distribute;  ///< `rank` is set for each rank
  RecomputePolicy recompute;
  DType compute = DType::kF32;
  int64_t seq_len = 0;
  int64_t global_batch = 0;
  int64_t num_microbatches = 1;
  int64_t logits_multiple = 1;
  int64_t steps = 5;
  double lr = 1e-3;
  uint64_t seed = 0;
};

struct MeshResult {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::map<std::string, std::vector<float>> initial;
  std::map<std::string, std::vector<float>> parameters;  ///< after the last step
  std::map<std::string, std::vector<float>>
      first_moments;  ///< by parameter; after one step they are the clipped gradients times 0.1
  /// Of the compute copies that updates keep, on the rank with most; in every step each had the
  /// bits of its master's cast.
  int64_t copied_elements = 0;
  Communicator::TrafficByKind traffic;  ///< of rank 0, all groups and steps
};

/// What one rank of the case runs.
RunShape shape_of(const MeshCase& mesh_case, int rank);

/// Throws Bug unless every rank's plan is sound and all ranks' collectives meet.
MeshResult run_mesh(const MeshCase& mesh_case);

}  // namespace tokamak
