// The hosts of a job: which ones the next attempt takes, which are spare, which are left out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::launch {

class Hosts {
 public:
  /// No hosts: the job runs on this machine.
  Hosts() = default;

  /// Reads a hostfile as mpirun does: a line "NAME slots=N" for each host, # for comments. `name`
  /// is the file's. Throws Error where it holds no host or a number of slots is none.
  Hosts(std::string_view text, const std::string& name);

  /// Returns lines of the first hosts, in the file's order, that have slots for `num_ranks`; the
  /// rest are spare. All hosts that are not excluded if a line has no number of slots, or if no
  /// host is excluded and they have too few slots. Nothing if exclusion leaves too few.
  std::optional<std::vector<std::string>> choose(int64_t num_ranks) const;

  /// Counts a failure, or `count` of them; with the second the host is excluded. Returns whether it
  /// now is, for the first time.
  bool add_failure(const std::string& host, int count = 1);

  bool empty() const { return hosts_.empty(); }

  /// Returns the names of hosts that are not excluded.
  std::vector<std::string> names() const;

  /// Returns the names of excluded hosts.
  std::vector<std::string> excluded() const;

 private:
  struct Host {
    std::string name;
    std::string line;
    std::optional<int64_t> slots;
    int failures = 0;
  };

  std::vector<Host> hosts_;
};

}  // namespace tokamak::launch
