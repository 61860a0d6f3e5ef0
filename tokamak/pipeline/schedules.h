// The pipeline schedules, by torchtitan's names. p is the number of pipeline ranks, m of
// microbatches; every m >= 1 works. docs/parallelism.md says what each costs.
#pragma once

#include <string>

#include "tokamak/pipeline/schedule.h"

namespace tokamak {

/// How stages lie on ranks: stage s on rank s mod p, or in a V (rank r has r and 2p - 1 - r).
enum class StageOrder : uint8_t { kLoop, kV };

struct ScheduleKind {
  std::string name;  ///< torchtitan's spelling
  int default_stages_per_rank = 1;
  bool fixed_stages_per_rank = true;
  StageOrder order = StageOrder::kLoop;
  bool holds_all = false;  ///< activations of all microbatches at once
};

/// The schedule that parallelism.pipeline_parallel_schedule names, in any case of letters:
/// GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble (with one stage a rank it is
/// ZB-H1), ZBVZeroBubble, DualPipeV, VHalf, VMin. Throws Error that lists them.
ScheduleKind schedule_kind(const std::string& name);

/// Throws Error that names the key where a schedule has another number of stages on a rank.
PipelineSchedule make_schedule(const std::string& name, int num_ranks, int stages_per_rank,
                               int num_microbatches);

/// All forwards of a chunk, then the next chunk; backward the same in reverse. With one stage a
/// rank it is GPipe.
PipelineSchedule looped_bfs(int num_ranks, int stages_per_rank, int num_microbatches);

/// One forward, one backward, over groups of about `group_size` microbatches (0: p) that run
/// through a rank's chunks one chunk after another (Megatron's order). With one stage a rank it is
/// 1F1B. Larger groups give transfers more time and hold more activations.
PipelineSchedule interleaved_1f1b(int num_ranks, int stages_per_rank, int num_microbatches,
                                  int group_size = 0);

/// The same with half the lead of early ranks and weight gradients set off: rank r runs W r chunks
/// late and fills the drain with them. Bubble (p-1)(F+I-W) where W <= F, and p * stages_per_rank
/// chunks in flight on every rank (arXiv 2401.10241, ZB-H1).
PipelineSchedule interleaved_zero_bubble(int num_ranks, int stages_per_rank, int num_microbatches);

/// ZB-V (arXiv 2405.15362): two stages a rank in a V; with F = I = W no rank waits between its
/// first and last item, at 2p chunks in flight.
PipelineSchedule zbv_zero_bubble(int num_ranks, int num_microbatches);

/// DualPipeV: the V with overlapped forward-backward pairs; 2p + 1 chunks in flight.
PipelineSchedule dual_pipe_v(int num_ranks, int num_microbatches);

/// V-Half and V-Min (arXiv 2405.15362): about half and a third of 1F1B's activations, for more
/// bubble. V-Min's pattern stalls where F, I and W differ: it can be slower than 1F1B.
PipelineSchedule v_half(int num_ranks, int num_microbatches);
PipelineSchedule v_min(int num_ranks, int num_microbatches);

/// The schedule `times` times, one after the other without a barrier: microbatches count on.
PipelineSchedule repeat_schedule(const PipelineSchedule& schedule, int times);

}  // namespace tokamak
