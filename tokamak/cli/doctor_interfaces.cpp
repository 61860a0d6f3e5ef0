#include "tokamak/cli/doctor_interfaces.h"

#include <cstdlib>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/launch/network/probe_network.h"
#include "tokamak/launch/process/hosts.h"

namespace tokamak::cli {
namespace {

struct ProbedNetwork {
  size_t num_hosts = 0;
  launch::NetworkProbe probe;
};

ProbedNetwork probe(const std::string& hostfile) {
  if (!hostfile.empty()) {
    TOK_REQUIRE(path_exists(hostfile), "tokamak doctor: --hostfile {}: no such file", hostfile);
    const auto hosts = launch::Hosts(read_file(hostfile), hostfile).names();
    return {.num_hosts = hosts.size(), .probe = launch::probe_hosts(hosts)};
  }
  const char* const nodes = std::getenv("SLURM_JOB_NUM_NODES");
  const int num_nodes = nodes == nullptr ? 0 : std::atoi(nodes);
  TOK_REQUIRE(num_nodes > 0, "tokamak doctor --interfaces: wanted --hostfile, or a Slurm job");
  return {.num_hosts = static_cast<size_t>(num_nodes),
          .probe = launch::probe_allocation(static_cast<size_t>(num_nodes))};
}

std::string shell_lines(const std::string& interface) {
  std::string text;
  for (const auto& [name, value] : launch::interface_variables(interface))
    text += fmt::format("export {}={}\n", name, value);
  return text;
}

}  // namespace

int run_doctor_interfaces(const std::string& hostfile, const std::string& settings) {
  const auto [num_hosts, probed] = probe(hostfile);
  fmt::print("{}", to_table(probed));
  const auto interface = probed.hosts.size() == num_hosts ? fastest_common(probed) : std::nullopt;
  if (!interface) {
    fmt::print("network: no interface connects all hosts; {} of {} answer\n", probed.hosts.size(),
               num_hosts);
    return static_cast<int>(ExitCode::kTryAgain);
  }
  if (!settings.empty()) write_file_atomic(settings, shell_lines(interface->name));
  fmt::print("network: {} ({}) connects all {} hosts, found in {:.1f} s\n", interface->name,
             speed_text(*interface), num_hosts, probed.seconds);
  return 0;
}

}  // namespace tokamak::cli
