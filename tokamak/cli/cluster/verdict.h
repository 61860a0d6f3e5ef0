// Which hosts of a cluster to leave out, from the reports of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/cli/cluster/rank_report.h"

namespace tokamak::cli {

/// What is wrong with a host, or worth knowing.
struct Finding {
  enum class Kind {
    kFault,  ///< a run would fail there, or compute something else
    kSlow,   ///< a run would wait for it
    kNote
  };

  Kind kind = Kind::kNote;
  std::string host;  ///< empty: of the whole cluster
  std::string text;
};

/// Shares of the median below which a host is slow. CPUs are shared with others and differ more.
struct SlowBounds {
  double gpu = 0.8;
  double cpu = 0.2;
};

/// Compares hosts with the median of all hosts; a lone host is only looked at for faults.
std::vector<Finding> findings_of(const std::vector<RankReport>& reports, SlowBounds bounds = {});

/// Returns the hosts that have faults or are slow, each once, in the order of ranks.
std::vector<std::string> hosts_to_leave_out(const std::vector<RankReport>& reports,
                                            const std::vector<Finding>& findings);

/// Returns a line for each rank below a header. Of more than `most` ranks only those of hosts with
/// findings and the first `most` are shown.
std::string to_table(const std::vector<RankReport>& reports, const std::vector<Finding>& findings,
                     size_t most = 64);

/// Returns a line for each finding, and the verdict in a last one: "cluster: leave out n2".
std::string to_verdict(const std::vector<RankReport>& reports,
                       const std::vector<Finding>& findings);

}  // namespace tokamak::cli
