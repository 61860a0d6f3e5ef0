// Which hosts of a cluster to leave out, from the reports of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/launch/cluster/rank_report.h"

namespace tokamak::launch {

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

/// Returns the hosts that have faults or, unless `faults_only`, are slow: each once, in the
/// order of ranks.
std::vector<std::string> hosts_to_leave_out(const std::vector<RankReport>& reports,
                                            const std::vector<Finding>& findings,
                                            bool faults_only = false);

/// Returns how many hosts the ranks are on.
size_t num_hosts(const std::vector<RankReport>& reports);

/// Returns a line for each finding: "slow: n2: copy 1.00 GB/s, the median host has 9.00".
std::string to_lines(const std::vector<Finding>& findings);

/// Returns what a shell script reads: "leave_out=n2,n3".
std::string to_settings(const std::vector<std::string>& leave_out);

/// Returns the hosts in such a text, "n2,n3"; nothing where it is another text.
std::string hosts_in_settings(const std::string& text);

/// Returns a line for each rank below a header. Of more than `most` ranks only those of hosts with
/// findings and the first `most` are shown.
std::string to_table(const std::vector<RankReport>& reports, const std::vector<Finding>& findings,
                     size_t most = 64);

/// Returns a line for each finding, and the verdict in a last one: "cluster: leave out n2".
std::string to_verdict(const std::vector<RankReport>& reports,
                       const std::vector<Finding>& findings);

}  // namespace tokamak::launch
