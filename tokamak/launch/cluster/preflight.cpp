#include "tokamak/launch/cluster/preflight.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/timing.h"
#include "tokamak/launch/cluster/findings.h"
#include "tokamak/train/together.h"

namespace tokamak::launch {
namespace {

using Reports = std::vector<RankReport>;

/// These sizes keep the check below 10 s even where cores are busy.
constexpr CheckEffort kQuick{.matmul_size = 512, .copy_bytes = size_t{8} << 20U, .network_s = 4.0};

bool is_wanted(World& control, const LaunchEnvironment& launched, const std::string& when) {
  const auto hosts = control.all_gather_text(launched.host);
  const bool has_several = std::set<std::string>(hosts.begin(), hosts.end()).size() > 1;
  const bool is_checked =
      !control.broadcast_text(environment_variable(kCheckedVariable), 0).empty();
  return when != "never" && (has_several || when == "strict") && !is_checked;
}

/// With many hosts a folder that none but the first sees is no fault of theirs.
void require_shared_folder(const Reports& reports, const std::filesystem::path& folder) {
  const bool is_seen = std::ranges::any_of(
      reports, [&](const RankReport& r) { return r.host != reports[0].host && r.shares_folder; });
  TOK_REQUIRE(is_seen || num_hosts(reports) < 3,
              "job.dump_folder = {}: wanted a folder that all {} hosts share, but none sees what "
              "{} has written there",
              folder.string(), num_hosts(reports), reports[0].host);
}

/// Prints the findings, and writes the hosts to leave out for whoever starts the job again. Rank 0
/// calls it.
void report(const Reports& reports, const std::vector<Finding>& findings,
            const std::vector<std::string>& leave_out, double seconds, const Preflight& preflight) {
  const size_t hosts = num_hosts(reports);
  const std::string checked =
      fmt::format("cluster: {} host{} checked in {:.1f} s", hosts, hosts == 1 ? "" : "s", seconds);
  if (findings.empty()) return preflight.print("INFO", checked);
  preflight.print("WARNING", fmt::format("{}:\n{}{}", checked, to_table(reports, findings),
                                         to_lines(findings)));
  if (leave_out.empty()) {
    preflight.print("WARNING",
                    fmt::format("cluster: going on with {}, which comm.check_cluster = \"strict\" "
                                "leaves out",
                                fmt::join(hosts_to_leave_out(reports, findings), ", ")));
    return;
  }
  const std::string file = environment_variable(kLeaveOutVariable);
  if (!file.empty()) write_file_atomic(file, to_settings(leave_out));
}

}  // namespace

void check_before_training(World& control, World& ranks, Backend& backend,
                           const LaunchEnvironment& launched, const Preflight& preflight) {
  if (!is_wanted(control, launched, preflight.when)) return;
  const auto start = std::chrono::steady_clock::now();
  const Reports reports = check_cluster(control, ranks, backend, launched, preflight.folder,
                                        preflight.describe_gpu, kQuick);
  const double seconds = seconds_since(start);
  fail_together(control, [&] { require_shared_folder(reports, preflight.folder); });
  const auto findings = findings_of(reports);
  const auto leave_out = hosts_to_leave_out(reports, findings, preflight.when != "strict");
  on_rank_zero(control, [&] { report(reports, findings, leave_out, seconds, preflight); });
  if (leave_out.empty()) return;
  fail_together(control, [&] {
    throw SystemError(
        fmt::format("cluster: leave out {} (comm.check_cluster)", fmt::join(leave_out, ",")));
  });
}

}  // namespace tokamak::launch
