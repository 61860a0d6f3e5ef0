// `tokamak doctor --cluster`: which hosts the reports of ranks speak against.
#include "tokamak/launch/cluster/findings.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/launch/cluster/nvml.h"

namespace tokamak::launch {
namespace {

using Names = std::vector<std::string>;

/// Reports of GPUs that are all alike.
std::vector<RankReport> reports_of(int hosts, int ranks_per_host) {
  std::vector<RankReport> reports;
  reports.reserve(static_cast<size_t>(hosts) * static_cast<size_t>(ranks_per_host));
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    reports.push_back({.rank = rank,
                       .local_rank = rank % ranks_per_host,
                       .host = "n" + std::to_string(rank / ranks_per_host + 1),
                       .is_gpu = true,
                       .device = "NVIDIA H100",
                       .memory_bytes = int64_t{80} << 30,
                       .free_bytes = int64_t{79} << 30,
                       .gemm_flops = 7e14,
                       .copy_bytes_per_s = 2.5e12,
                       .ring_bytes_per_s = 3e11,
                       .pair_bytes_per_s = 4e10,
                       .pair_rank = 0,
                       .disk_bytes = int64_t{1} << 40,
                       .clock_mhz = 1700,
                       .most_clock_mhz = 1980,
                       .ecc_errors = 0,
                       .versions = {{"program", "1234"}, {"NCCL", "2.28"}}});
  }
  return reports;
}

Names left_out(const std::vector<RankReport>& reports) {
  return hosts_to_leave_out(reports, findings_of(reports));
}

TEST(ClusterVerdict, AlikeHostsAreGood) {
  const auto reports = reports_of(4, 2);
  EXPECT_TRUE(findings_of(reports).empty());
  EXPECT_EQ(to_verdict(reports, {}), "cluster: all 4 hosts are good\n");
}

TEST(ClusterVerdict, ASlowRankSpeaksAgainstItsHost) {
  for (double RankReport::*rate : {&RankReport::gemm_flops, &RankReport::copy_bytes_per_s,
                                   &RankReport::ring_bytes_per_s, &RankReport::pair_bytes_per_s}) {
    auto reports = reports_of(4, 2);
    reports[5].*rate *= 0.7;
    EXPECT_EQ(left_out(reports), Names{"n3"});
    reports[5].*rate *= 0.9 / 0.7;
    EXPECT_EQ(left_out(reports), Names{});
  }
  auto two = reports_of(2, 1);
  two[0].gemm_flops *= 0.5;
  EXPECT_EQ(left_out(two), Names{"n1"}) << "of two hosts the better one is the measure";
  auto one = reports_of(1, 4);
  one[2].gemm_flops *= 0.5;
  EXPECT_EQ(left_out(one), Names{}) << "a lone host has none to be compared with";
}

TEST(ClusterVerdict, FaultsCountOnALoneHostToo) {
  const std::pair<void (*)(RankReport&), const char*> faults[] = {
      {[](RankReport& r) { r.ecc_errors = 3; }, "3 memory errors that ECC could not correct"},
      {[](RankReport& r) { r.faults = {"Xid 79: the GPU has fallen off the bus"}; }, "Xid 79"},
      {[](RankReport& r) { r.free_bytes = int64_t{40} << 30; }, "others hold 40.0 of 80.0 GiB"},
      {[](RankReport& r) { r.folder_error = "/runs: read-only"; }, "/runs: read-only"}};
  for (const auto& [break_it, text] : faults) {
    auto reports = reports_of(1, 1);
    break_it(reports[0]);
    EXPECT_EQ(left_out(reports), Names{"n1"});
    EXPECT_NE(to_verdict(reports, findings_of(reports)).find(text), std::string::npos);
  }
}

TEST(ClusterVerdict, AHostUnlikeTheOthersIsNamed) {
  auto reports = reports_of(3, 2);
  reports[2].versions["program"] = "5678";
  EXPECT_EQ(to_verdict(reports, findings_of(reports)),
            "fault: n2: program is 5678, most ranks have 1234\ncluster: leave out n2\n");
  reports = reports_of(3, 2);
  reports[4].device = "NVIDIA A100";
  EXPECT_EQ(left_out(reports), Names{"n3"});
  reports = reports_of(3, 2);
  for (auto& report : reports) report.nvlink_domain = report.host == "n1" ? "aa.1" : "aa.0";
  EXPECT_EQ(left_out(reports), Names{"n1"});
  reports = reports_of(2, 2);
  reports[2].shares_folder = false;
  EXPECT_EQ(left_out(reports), Names{"n2"});
}

TEST(ClusterVerdict, AHostThatDiffersTwiceIsLeftOutOnce) {
  auto reports = reports_of(3, 1);
  reports[1].ecc_errors = 1;
  reports[1].gemm_flops = 1e12;
  EXPECT_EQ(left_out(reports), Names{"n2"});
  for (auto& report : reports) report.ecc_errors = 1;
  EXPECT_NE(to_verdict(reports, findings_of(reports)).find("cluster: no host is good\n"),
            std::string::npos);
}

TEST(ClusterVerdict, TheTableShowsEveryBadHost) {
  auto reports = reports_of(100, 1);
  reports[90].ecc_errors = 1;
  const std::string table = to_table(reports, findings_of(reports), 10);
  EXPECT_NE(table.find("n91"), std::string::npos);
  EXPECT_NE(table.find("89 more ranks are not shown"), std::string::npos);
}

TEST(ClusterVerdict, FewerThreadsAreNoFault) {
  auto reports = reports_of(3, 1);
  reports[1].device = "4 threads";
  EXPECT_EQ(hosts_to_leave_out(reports, findings_of(reports), true), Names{"n2"});
  for (auto& report : reports) report.is_gpu = false;
  EXPECT_EQ(hosts_to_leave_out(reports, findings_of(reports), true), Names{});
  EXPECT_EQ(left_out(reports), Names{"n2"});
}

TEST(ClusterVerdict, IsReadBackFromItsSettings) {
  EXPECT_EQ(to_settings({"n2", "n3"}), "leave_out=n2,n3\n");
  EXPECT_EQ(hosts_in_settings("leave_out=n2,n3\n"), "n2,n3");
  for (const char* text : {"", "leave_out=\n", "leave=n2\n", " leave_out=n2\n"})
    EXPECT_EQ(hosts_in_settings(text), "") << text;
}

TEST(RankReport, TravelsAsText) {
  RankReport report = reports_of(1, 1)[0];
  report.faults = {"a \"quoted\" fault"};
  report.ecc_errors.reset();
  EXPECT_EQ(to_json(report_of_json(to_json(report))), to_json(report));
  EXPECT_THROW(report_of_json("{}"), Error);
}

TEST(Xid, OnlyFaultsOfHardwareOfThisGpu) {
  const std::string log =
      "4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
      "4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, again\n"
      "4,1,1,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=2, a program's own fault\n"
      "4,1,1,-;NVRM: Xid (PCI:0000:5d:00): 48, another GPU\n";
  EXPECT_EQ(xid_faults(log, "0000:1b:00.0"), Names{"Xid 79: the GPU has fallen off the bus"});
  EXPECT_EQ(xid_faults("", "0000:1b:00.0"), Names{});
}

}  // namespace
}  // namespace tokamak::launch
