// The pipeline schedules, by torchtitan's names. p is the number of pipeline ranks, m that of
// microbatches; every m >= 1 works. docs/parallelism.md says what each costs.
#pragma once

#include <string>
#include <vector>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// How stages lie on ranks: stage s is on rank s mod p, or in a V (rank r has r and 2p - 1 - r).
enum class StageOrder : uint8_t { kLoop, kV };

struct ScheduleKind {
  std::string name;  ///< torchtitan's spelling
  int default_stages_per_rank = 1;
  bool fixed_stages_per_rank = true;
  StageOrder order = StageOrder::kLoop;
  bool holds_all = false;  ///< activations of all microbatches at once
  PipelineSchedule (*make)(int num_ranks, int stages_per_rank, int num_microbatches) = nullptr;
};

/// Returns the names of all schedules.
std::vector<std::string> schedule_names();

/// Returns the schedule that parallelism.pipeline_parallel_schedule names; letter case does not
/// matter. Throws Error that lists all names.
ScheduleKind schedule_kind(const std::string& name);

/// Throws Error that names the key where a schedule has another number of stages per rank.
PipelineSchedule make_schedule(const std::string& name, int num_ranks, int stages_per_rank,
                               int num_microbatches);

/// Alternates one forward and one backward over groups of about `group_size` (at least p)
/// microbatches that run through a rank's chunks one chunk after another (Megatron's order). With
/// one stage per rank it is 1F1B. Larger groups give transfers more time and hold more activations.
PipelineSchedule grouped_1f1b(int num_ranks, int stages_per_rank, int num_microbatches,
                              int group_size);

/// V-Half and V-Min (arXiv 2405.15362) hold about half and a third of 1F1B's activations, for more
/// bubble. V-Min's pattern stalls where F, I and W differ: it can be slower than 1F1B.
PipelineSchedule v_half(int num_ranks, int stages_per_rank, int num_microbatches);
PipelineSchedule v_min(int num_ranks, int stages_per_rank, int num_microbatches);

/// Repeats the schedule `times` times without a barrier; microbatch numbers continue.
PipelineSchedule repeat_schedule(const PipelineSchedule& schedule, int times);

}  // namespace tokamak
