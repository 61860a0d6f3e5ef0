// Who is to blame for the end of a job, and with what code it ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tokamak/launch/job/rank_end.h"

namespace tokamak::launch {

/// Holds all that the launcher knows of a job that is over.
struct JobEnd {
  std::map<int64_t, RankEnd> ranks;  ///< the ends that became known
  int code = 0;                      ///< of mpirun, or of the watcher of a job without one
  bool was_stopped = false;          ///< the user asked the job to stop
  std::string reason;                ///< why the launcher ended the job itself, else empty
  std::string host;                  ///< the host that `reason` is about, else empty
};

struct Verdict {
  int exit_code = 0;
  std::string text;           ///< one line for the user where no rank has said it, else empty
  std::string host;           ///< where the fault was, as far as it is known
  bool host_is_lost = false;  ///< it has not been heard of
  std::string leave_out;      ///< hosts that the check of the cluster names, as "n2,n3"
  int64_t step = -1;          ///< that the rank at fault had done; -1 = unknown
  std::vector<pid_t> dying;   ///< ranks of this host that are not gone yet
};

/// Whether a job that ended so may be started again with hope: the machine failed, or a rank died.
bool is_machine_fault(int exit_code);

/// Blames the rank that died of a signal or was ended by its watcher, before one that reported its
/// own error, before one that lost its peers; among equals the first. Survivors that die of SIGPIPE
/// have lost their peers.
Verdict judge(const JobEnd& end);

}  // namespace tokamak::launch
