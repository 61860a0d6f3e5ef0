#include "tokamak/cli/doctor_cluster.h"

#include <chrono>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/devices.h"
#include "tokamak/comm/watchdog.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/launch/cluster/cluster_check.h"
#include "tokamak/launch/cluster/findings.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

std::string json_line(const std::vector<launch::RankReport>& reports,
                      const std::vector<std::string>& leave_out) {
  std::string text;
  for (const launch::RankReport& report : reports) text += to_json(report) + "\n";
  return text + fmt::format("{{\"leave_out\":[{}{}{}]}}\n", leave_out.empty() ? "" : "\"",
                            fmt::join(leave_out, "\",\""), leave_out.empty() ? "" : "\"");
}

}  // namespace

int run_doctor_cluster(const ClusterWords& words) {
  constexpr auto kPatience = std::chrono::seconds(60);
  const auto start = std::chrono::steady_clock::now();
  const LaunchEnvironment launched = read_launch_environment();
  Watchdog watchdog({.start = kPatience, .progress = kPatience});
  const auto world = make_world(launched, {.timeout = kPatience});
  watchdog.watch(*world);
  std::unique_ptr<Backend> backend;
  all_together(*world, [&] {
    backend = open_backend({.device = words.device}, launched);
    return std::string();
  });
  std::unique_ptr<World> of_gpus;
  World& ranks = device_world(*world, *backend, launched, false, of_gpus);
  const auto reports =
      launch::check_cluster(*world, ranks, *backend, launched, words.folder, describe_gpu);
  const auto findings = findings_of(reports);
  const auto leave_out = hosts_to_leave_out(reports, findings);
  on_rank_zero(*world, [&] {
    if (!words.settings.empty()) write_file_atomic(words.settings, launch::to_settings(leave_out));
    if (words.json) {
      fmt::print("{}", json_line(reports, leave_out));
    } else {
      fmt::print("{}{}", to_table(reports, findings), to_verdict(reports, findings));
      fmt::print("checked in {:.1f} s\n",
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::fflush(stdout);
    return std::string();
  });
  watchdog.leave();
  return leave_out.empty() ? 0 : static_cast<int>(ExitCode::kTryAgain);
}

}  // namespace tokamak::cli
