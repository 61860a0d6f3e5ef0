// Runs of `tokamak launch -- train` under faults. Every test of this folder ends with the same
// three assertions: no process is left, the time is bounded, and the losses are those of a run that
// nobody touched.
//
// A rule of a fault is words KEY=VALUE joined by ',':
//   call=write|open|fsync|rename|mkdir|MPI_Init_thread|MPI_Isend|MPI_Finalize   the call it is for
//   path=PART      only for files with PART in their path
//   rank=R         only on this rank; else on all
//   nth=N times=M  from the N-th such call on (1), M times (1; 0 = for ever)
//   once=FILE      only if FILE is not there yet; it is made, so that restarts are spared
//   after=FILE     only if FILE is there: the once=FILE of another rule
//   in=ROLE        the process: train (a rank), launch, launch-rank, mpirun
//   do=kill|stop|hang|spin|signal:NUMBER|sleep:SECONDS|exit:CODE|errno:EIO
//   do=flip        a bit of the message that MPI_Isend sends
//   do=clock:SECONDS   the wall clock jumps: at the call, or at the start where none is named
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/fixtures/training_run.h"

namespace tokamak {

/// The seed by which faults are drawn, printed when it is first asked for: TOK_FAULTS_SEED, or one
/// that each commit has of its own.
uint64_t fault_seed();

/// Whether the drawn part of this suite holds the case `name`: one in `one_in` cases, others at
/// each commit. TOK_FAULTS=all (`make faults`) takes all of them.
bool is_drawn(const std::string& name, int one_in);

/// Whether a checkpoint below `dump` has begun and is not whole yet.
bool is_saving(const std::filesystem::path& dump);

struct FaultyJob {
  int num_ranks = 2;
  Words launch{};  ///< more options of `tokamak launch`
  Words train{};   ///< more overrides
  Words faults{};  ///< rules
};

/// A job that trains llama_tiny for 12 steps, with a checkpoint every 4, into a folder of its own.
class FaultRun {
 public:
  explicit FaultRun(const FaultyJob& job);

  const std::filesystem::path& dump() const { return scratch_.path(); }

  RunningProgram& program() { return program_; }

  /// Waits for the end; expects `exit_code` after at most `seconds` from the start.
  ProgramResult expect_end(int exit_code, double seconds);

  double seconds() const;

  /// Expects that no process of the job is left five seconds later.
  void expect_no_orphan() const;

  /// Expects the steps, losses and gradient norms of a run without faults.
  void expect_same_losses() const;

 private:
  FaultyJob job_;
  ScratchFolder scratch_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  RunningProgram program_;
};

/// The words that start such a job into `dump`.
Words words_of(const FaultyJob& job, const std::filesystem::path& dump);

}  // namespace tokamak
