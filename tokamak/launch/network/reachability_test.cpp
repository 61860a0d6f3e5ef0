// Which network interface connects all hosts, from what their probes say.
#include "tokamak/launch/network/reachability.h"

#include <gtest/gtest.h>

#include "tokamak/launch/network/interfaces.h"
#include "tokamak/launch/network/probe_network.h"

namespace tokamak::launch {
namespace {

/// Hosts n1, n2 ... that all have these interfaces and reach all their partners.
NetworkProbe probe_of(size_t num_hosts, const std::vector<Interface>& interfaces) {
  NetworkProbe probe;
  for (size_t i = 0; i < num_hosts; ++i) {
    probe.hosts.push_back({.id = std::to_string(i), .host = "n" + std::to_string(i + 1)});
    for (const Interface& interface : interfaces) {
      probe.hosts.back().interfaces.push_back({.interface = interface, .port = 1});
      for (const size_t partner : partners_of(i, num_hosts))
        probe.links.push_back(
            {.interface = interface.name, .from = i, .to = partner, .works = true});
    }
  }
  return probe;
}

const std::vector<Interface> kUsual{{.name = "eth0", .address = "10.0.0.1", .mbit_per_s = 1000},
                                    {.name = "hsn0", .address = "10.1.0.1", .mbit_per_s = 200'000},
                                    {.name = "hsn1", .address = "10.2.0.1", .mbit_per_s = 200'000},
                                    {.name = "tun0", .address = "10.3.0.1"}};

std::string chosen(const NetworkProbe& probe) {
  const auto interface = fastest_common(probe);
  return interface ? interface->name : "none";
}

TEST(Reachability, TheFastestIsTakenAndOfEqualsTheFirst) {
  EXPECT_EQ(chosen(probe_of(4, kUsual)), "hsn0");
  EXPECT_EQ(chosen(probe_of(2, {kUsual[3], kUsual[0]})), "eth0") << "of unknown speed is slowest";
  EXPECT_EQ(chosen(probe_of(2, {kUsual[3]})), "tun0");
  EXPECT_EQ(chosen(probe_of(2, {})), "none");
}

TEST(Reachability, OneLinkThatFailsIsEnough) {
  for (const size_t broken : {size_t{0}, size_t{5}, size_t{11}}) {
    NetworkProbe probe = probe_of(4, kUsual);
    size_t seen = 0;
    for (ProbedLink& link : probe.links) link.works = link.interface != "hsn0" || seen++ != broken;
    EXPECT_EQ(chosen(probe), "hsn1");
  }
  NetworkProbe silent = probe_of(4, kUsual);
  silent.links.pop_back();
  EXPECT_EQ(chosen(silent), "hsn0");
  silent.links.clear();
  EXPECT_EQ(chosen(silent), "none") << "what is not known to work does not";
}

TEST(Reachability, AllHostsMustHaveItAndTheSlowestCounts) {
  NetworkProbe probe = probe_of(3, kUsual);
  probe.hosts[2].interfaces[1].interface.name = "hsn9";
  EXPECT_EQ(chosen(probe), "hsn1");
  probe.hosts[1].interfaces[2].interface.mbit_per_s = 100;
  EXPECT_EQ(chosen(probe), "eth0");
}

TEST(Reachability, ManyHostsTryPartnersAtPowersOfTwo) {
  EXPECT_EQ(partners_of(2, 4), (std::vector<size_t>{3, 0, 1}));
  EXPECT_EQ(partners_of(90, 100), (std::vector<size_t>{91, 92, 94, 98, 6, 22, 54}));
  EXPECT_TRUE(partners_of(0, 1).empty());
  EXPECT_EQ(chosen(probe_of(100, kUsual)), "hsn0");
}

TEST(Reachability, TheTableShowsWhoDoesNotReachWhom) {
  NetworkProbe probe = probe_of(3, {kUsual[0], kUsual[1]});
  for (ProbedLink& link : probe.links) link.works = link.interface != "hsn0" || link.to != 2;
  EXPECT_EQ(to_table(probe),
            "interface                speed      hosts  connections that work\n"
            "eth0                    1 Gb/s     3 of 3  6 of 6  <- the fastest that connects all\n"
            "hsn0                  200 Gb/s     3 of 3  4 of 6\n"
            "hsn0 from, and to:\n"
            "      n1  n2  n3\n"
            "  n1   .  yes  no\n"
            "  n2  yes   .  no\n"
            "  n3  yes  yes   .\n");
}

TEST(ProbeLine, SurvivesItsText) {
  for (const ProbeLine& line :
       {ProbeLine{.kind = ProbeLine::Kind::kInterface,
       .id = "a1",
       .host = "n1",
       .listening = {.interface = kUsual[1], .port = 4711}},
        ProbeLine{.kind = ProbeLine::Kind::kLink,
        .id = "a1",
        .host = "n1",
        .listening = {.interface = {.name = "ib0"}},
        .to = "b2",
        .works = true},
        ProbeLine{.kind = ProbeLine::Kind::kReady, .id = "a1", .host = "n1"},
        ProbeLine{.kind = ProbeLine::Kind::kGo}}) {
    const auto read = parse_probe_line(to_line(line));
    ASSERT_TRUE(read) << to_line(line);
    EXPECT_EQ(to_line(*read), to_line(line));
  }
}

TEST(ProbeLine, IsNothingElse) {
  for (const char* text :
       {"", "Welcome to n1", "tokamak-probe", "tokamak-probe ready", "tokamak-probe hello a n1",
        "tokamak-probe interface a n1 eth0 10.0.0.1 0 1000",
        "tokamak-probe interface a n1 eth0 10.0.0 80 1000",
        "tokamak-probe interface a n1 $(reboot) 10.0.0.1 80 1000",
        "tokamak-probe interface a n1 -x 10.0.0.1 80 1000", "tokamak-probe link a n1 eth0 b"}) {
    EXPECT_FALSE(parse_probe_line(text)) << text;
  }
}

TEST(ListInterfaces, HaveNamesAndAddressesAndNoLoopback) {
  for (const Interface& interface : list_interfaces()) {
    EXPECT_TRUE(is_interface_name(interface.name));
    EXPECT_NE(interface.name, "lo");
    EXPECT_NE(interface.address.find('.'), std::string::npos);
    EXPECT_GE(interface.mbit_per_s, 0);
  }
}

TEST(ProbeNetwork, HostsThatDoNotAnswerAreMissing) {
  const auto start = std::chrono::steady_clock::now();
  const NetworkProbe probe = probe_network(
      {{"true"}, {"/no/such/program"}, {"sh", "-c", "echo tokamak-probe done a n1"}}, 3);
  EXPECT_TRUE(probe.hosts.empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace tokamak::launch
