#include "tokamak/launch/cluster/findings.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/timing.h"

namespace tokamak::launch {
namespace {

using Reports = std::vector<RankReport>;
using Kind = Finding::Kind;

constexpr std::string_view kLeaveOut = "leave_out=";

/// Hosts in the order of ranks, each with its ranks.
std::vector<std::pair<std::string, Reports>> by_host(const Reports& reports) {
  std::vector<std::pair<std::string, Reports>> hosts;
  for (const RankReport& report : reports) {
    auto at =
        std::ranges::find_if(hosts, [&](const auto& host) { return host.first == report.host; });
    if (at == hosts.end()) {
      hosts.push_back({report.host, {}});
      at = hosts.end() - 1;
    }
    at->second.push_back(report);
  }
  return hosts;
}

struct Rate {
  const char* what;
  double RankReport::*value;
  double unit;
  const char* unit_name;
};

constexpr Rate kRates[] = {{"matmul", &RankReport::gemm_flops, 1e-9, "GFLOP/s"},
                           {"copy", &RankReport::copy_bytes_per_s, 1e-9, "GB/s"},
                           {"ring", &RankReport::ring_bytes_per_s, 1e-9, "GB/s"},
                           {"slowest pair", &RankReport::pair_bytes_per_s, 1e-9, "GB/s"}};

/// A host's slowest rank is held against the median of the hosts' slowest ranks.
void find_slow(const Reports& reports, const SlowBounds& bounds, std::vector<Finding>& found) {
  const auto hosts = by_host(reports);
  if (hosts.size() < 2) return;
  for (const Rate& rate : kRates) {
    std::vector<double> slowest;
    for (const auto& [host, ranks] : hosts) {
      double least = ranks[0].*rate.value;
      for (const RankReport& rank : ranks) least = std::min(least, rank.*rate.value);
      slowest.push_back(least);
    }
    // Of two hosts the better one is the measure.
    const double middle = median(slowest);
    const double bound = middle * (reports[0].is_gpu ? bounds.gpu : bounds.cpu);
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (slowest[i] >= bound) continue;
      found.push_back({Kind::kSlow, hosts[i].first,
                       fmt::format("{} {:.2f} {}, the median host has {:.2f}", rate.what,
                                   slowest[i] * rate.unit, rate.unit_name, middle * rate.unit)});
    }
  }
}

/// The value that most ranks have.
std::string common(const Reports& reports,
                   const std::function<std::string(const RankReport&)>& value_of) {
  std::map<std::string, int> counts;
  std::string best;
  for (const RankReport& report : reports) {
    const std::string value = value_of(report);
    ++counts[value];
    if (counts[value] > counts[best]) best = value;
  }
  return best;
}

void find_unlike(const Reports& reports, const std::string& what,
                 const std::function<std::string(const RankReport&)>& value_of,
                 std::vector<Finding>& found, Kind kind = Kind::kFault) {
  const std::string usual = common(reports, value_of);
  for (const auto& [host, ranks] : by_host(reports)) {
    for (const RankReport& rank : ranks) {
      const std::string value = value_of(rank);
      if (value == usual) continue;
      found.push_back(
          {kind, host, fmt::format("{} is {}, most ranks have {}", what, value, usual)});
      break;
    }
  }
}

void find_faults(const Reports& reports, std::vector<Finding>& found) {
  constexpr double kOwnMemory = 0.9;
  for (const RankReport& r : reports) {
    const auto add = [&](const std::string& text) {
      found.push_back({Kind::kFault, r.host, text});
    };
    for (const std::string& fault : r.faults) add(fmt::format("rank {}: {}", r.rank, fault));
    if (r.ecc_errors.value_or(0) > 0)
      add(fmt::format("rank {}: {} memory errors that ECC could not correct", r.rank,
                      *r.ecc_errors));
    if (r.is_gpu &&
        static_cast<double>(r.free_bytes) < kOwnMemory * static_cast<double>(r.memory_bytes))
      add(fmt::format("rank {}: others hold {:.1f} of {:.1f} GiB of its device", r.rank,
                      gib(r.memory_bytes - r.free_bytes), gib(r.memory_bytes)));
    if (r.local_rank != 0) continue;
    if (!r.folder_error.empty()) add(r.folder_error);
    if (r.folder_error.empty() && !r.shares_folder)
      add("its dump_folder is not the one that rank 0 writes to");
  }
}

void find_unlike(const Reports& reports, std::vector<Finding>& found) {
  // Other GPUs compute other bits; fewer threads of a CPU only take longer.
  const bool has_gpus = std::ranges::any_of(reports, [](const RankReport& r) { return r.is_gpu; });
  find_unlike(
      reports, "device", [](const RankReport& r) { return r.device; }, found,
      has_gpus ? Kind::kFault : Kind::kSlow);
  std::set<std::string> names;
  for (const RankReport& report : reports) {
    for (const auto& [name, version] : report.versions) names.insert(name);
  }
  for (const std::string& name : names) {
    find_unlike(
        reports, name,
        [&](const RankReport& r) {
          const auto at = r.versions.find(name);
          return at == r.versions.end() ? std::string("missing") : at->second;
        },
        found);
  }
  const std::string domain = common(reports, [](const RankReport& r) { return r.nvlink_domain; });
  if (domain.empty()) return;
  for (const auto& [host, ranks] : by_host(reports)) {
    if (ranks[0].nvlink_domain == domain) continue;
    found.push_back({Kind::kSlow, host,
                     fmt::format("it is in NVLink domain {}, most hosts are in {}",
                                 ranks[0].nvlink_domain, domain)});
  }
}

}  // namespace

std::vector<Finding> findings_of(const Reports& reports, SlowBounds bounds) {
  std::vector<Finding> found;
  find_faults(reports, found);
  find_unlike(reports, found);
  find_slow(reports, bounds, found);
  return found;
}

std::vector<std::string> hosts_to_leave_out(const Reports& reports,
                                            const std::vector<Finding>& findings,
                                            bool faults_only) {
  const auto counts = [&](const Finding& finding) {
    return finding.kind == Kind::kFault || (finding.kind == Kind::kSlow && !faults_only);
  };
  std::vector<std::string> hosts;
  for (const auto& [host, ranks] : by_host(reports)) {
    const auto names = [&, &name = host](const Finding& finding) {
      return finding.host == name && counts(finding);
    };
    if (std::ranges::any_of(findings, names)) hosts.push_back(host);
  }
  return hosts;
}

std::string to_table(const Reports& reports, const std::vector<Finding>& findings, size_t most) {
  size_t width = 4;
  for (const RankReport& r : reports) width = std::max(width, r.host.size());
  std::string text =
      fmt::format("{:>5}  {:<{}}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>13}  {:>9}  {}\n", "rank",
                  "host", width, "free GiB", "TFLOP/s", "copy GB/s", "ring GB/s", "pair GB/s",
                  "of MHz", "disk GiB", "device");
  const auto bad = hosts_to_leave_out(reports, findings);
  size_t shown = 0;
  for (const RankReport& r : reports) {
    const bool is_bad = std::ranges::find(bad, r.host) != bad.end();
    if (shown >= most && !is_bad) continue;
    ++shown;
    const std::string clock =
        r.clock_mhz == 0 ? "-" : fmt::format("{} / {}", r.clock_mhz, r.most_clock_mhz);
    const std::string pair =
        r.pair_rank < 0 ? "-" : fmt::format("{:.2f}", 1e-9 * r.pair_bytes_per_s);
    text += fmt::format(
        "{:>5}  {:<{}}  {:>9.1f}  {:>9.3f}  {:>9.1f}  {:>9.2f}  {:>9}  {:>13}  {:>9.0f}  {}{}\n",
        r.rank, r.host, width, gib(r.free_bytes), 1e-12 * r.gemm_flops, 1e-9 * r.copy_bytes_per_s,
        1e-9 * r.ring_bytes_per_s, pair, clock, gib(std::max<int64_t>(r.disk_bytes, 0)), r.device,
        is_bad ? "  <-" : "");
  }
  if (shown < reports.size())
    text += fmt::format("{} more ranks are not shown\n", reports.size() - shown);
  return text;
}

size_t num_hosts(const Reports& reports) {
  return by_host(reports).size();
}

std::string to_settings(const std::vector<std::string>& leave_out) {
  return fmt::format("{}{}\n", kLeaveOut, fmt::join(leave_out, ","));
}

std::string hosts_in_settings(const std::string& text) {
  if (!text.starts_with(kLeaveOut)) return "";
  return text.substr(kLeaveOut.size(), text.find_first_of(" \n") - kLeaveOut.size());
}

std::string to_lines(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) {
    const char* const kind = f.kind == Kind::kFault  ? "fault"
                             : f.kind == Kind::kSlow ? "slow"
                                                     : "note";
    text += fmt::format("{}: {}{}{}\n", kind, f.host, f.host.empty() ? "" : ": ", f.text);
  }
  return text;
}

std::string to_verdict(const Reports& reports, const std::vector<Finding>& findings) {
  const std::string text = to_lines(findings);
  const auto hosts = by_host(reports);
  const auto bad = hosts_to_leave_out(reports, findings);
  if (bad.empty() && hosts.size() == 1) return text + "cluster: the host is good\n";
  if (bad.empty()) return text + fmt::format("cluster: all {} hosts are good\n", hosts.size());
  if (bad.size() == hosts.size()) return text + "cluster: no host is good\n";
  return text + fmt::format("cluster: leave out {}\n", fmt::join(bad, ","));
}

}  // namespace tokamak::launch
