// The choice of a network interface among hosts with networks of their own: network namespaces of
// this machine, entered by a stand-in for ssh. Without the right to make them the tests are
// skipped.
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/program.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

/// Hosts n1 to n3 on three networks: eth0, hsn0, and ib0, whose cable to n3 is not plugged in.
constexpr const char* kMakeNetworks = R"(
set -e
ip netns add $0-switches
for net in eth0 hsn0 ib0; do
  ip -n $0-switches link add $net type bridge
  ip -n $0-switches link set $net up
done
for i in 1 2 3; do
  ip netns add $0-n$i
  ip -n $0-n$i link set lo up
  number=0
  for net in eth0 hsn0 ib0; do
    number=$((number + 1))
    ip -n $0-n$i link add $net type veth peer name $net-$i netns $0-switches
    ip -n $0-n$i addr add 10.77.$number.$i/24 dev $net
    ip -n $0-n$i link set $net up
    ip -n $0-switches link set $net-$i up
    [ $net$i = ib03 ] || ip -n $0-switches link set $net-$i master $net
  done
done
)";

/// Runs a command on a host. The links claim the speeds of real ones.
constexpr const char* kRemoteShell = R"(#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift $(( $([ "$1" = -o ] && echo 2 || echo 1) )); done
export host=$1 dir=$(dirname "$0"); shift
[ ! -e "$dir/$host-is-down" ] || exit 255
exec ip netns exec $(basename "$dir")-$host unshare --uts sh -c '
  hostname $host
  for net in eth0 hsn0 ib0; do mount --bind $dir/$net /sys/class/net/$net/speed; done
  mount --bind $dir/names /etc/hosts
  mount --bind /dev/null /etc/resolv.conf
  exec /bin/sh -c "$0"' "$*"
)";

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (run_program({"bash", "-c", kMakeNetworks, prefix()}).exit_code != 0)
      GTEST_SKIP() << "no right to make network namespaces, or no ip";
    const auto write = [&](const char* name, const std::string& text) {
      FileWriter(folder_.path() / name).write(text);
    };
    write("shell", kRemoteShell);
    fs::permissions(shell(), fs::perms::owner_all);
    for (const auto& [net, speed] :
         {std::pair{"eth0", "1000"}, std::pair{"hsn0", "200000"}, std::pair{"ib0", "400000"}})
      write(net, speed);
    write("names", "127.0.0.1 localhost\n10.77.1.1 n1\n10.77.1.2 n2\n10.77.1.3 n3\n");
    write("hosts", "n1 slots=1\nn2 slots=1\nn3 slots=1\n");
    ::setenv("OMPI_MCA_plm_rsh_agent", shell().c_str(), 1);
  }

  void TearDown() override {
    for (const char* name : {"switches", "n1", "n2", "n3"})
      run_program({"ip", "netns", "del", prefix() + "-" + name});
  }

  /// Runs `tokamak WORDS` on n1.
  ProgramResult on_first_host(const std::string& words) const {
    return run_program({shell(), "n1", TOK_PROGRAM " " + words}, folder_.path());
  }

  int64_t bytes_received(const std::string& host, const std::string& net) const {
    const auto text =
        run_program({shell(), host, "cat /sys/class/net/" + net + "/statistics/rx_bytes"});
    return std::atoll(text.out.c_str());
  }

  std::string hosts() const { return (folder_.path() / "hosts").string(); }

  const ScratchFolder& folder() const { return folder_; }

 private:
  std::string prefix() const { return folder_.path().filename(); }

  std::string shell() const { return (folder_.path() / "shell").string(); }

  ScratchFolder folder_;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST_F(NetworkTest, TheFastestThatConnectsAllHostsIsSetForNcclAndMpiAlike) {
  const auto result = on_first_host("launch -n 3 --hostfile " + hosts() + " -- /usr/bin/env");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string said = result.out + result.err;
  const std::string front =
      "tokamak launch: network: hsn0 (200 Gb/s) connects all 3 hosts, found in ";
  const size_t at = said.find(front);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_LT(std::atof(said.c_str() + at + front.size()), 5.0);
  for (const char* text : {"NCCL_SOCKET_IFNAME==hsn0\n", "OMPI_MCA_btl_tcp_if_include=hsn0\n",
                           "OMPI_MCA_oob_tcp_if_include=hsn0\n"})
    EXPECT_EQ(count_of(said, text), 3U) << text << said;
}

TEST_F(NetworkTest, TheRanksTalkByIt) {
  const fs::path run = folder().path() / "run";
  const auto result = on_first_host("launch -n 3 --hostfile " + hosts() +
                                    " -- doctor --cluster --dump-folder=" + run.string());
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE((result.out + result.err).find("cluster: all 3 hosts are good"), std::string::npos);
  constexpr int64_t kMessage = 4 << 20;
  EXPECT_GT(bytes_received("n2", "hsn0"), kMessage);
  EXPECT_LT(bytes_received("n2", "eth0"), kMessage / 4);
}

TEST_F(NetworkTest, WhatTheUserHasChosenStays) {
  ::setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
  const auto result = on_first_host("launch -n 3 --hostfile " + hosts() + " -- /usr/bin/env");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  const std::string said = result.out + result.err;
  EXPECT_EQ(said.find("network:"), std::string::npos) << said;
  EXPECT_EQ(count_of(said, "NCCL_SOCKET_IFNAME=eth0\n"), 3U) << said;
  EXPECT_EQ(said.find("btl_tcp_if_include"), std::string::npos) << said;
}

TEST_F(NetworkTest, DoctorShowsWhoReachesWhom) {
  const auto result =
      on_first_host("doctor --interfaces --hostfile " + hosts() + " --settings settings");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* text :
       {"hsn0                  200 Gb/s     3 of 3  6 of 6  <- the fastest that connects all\n",
        "ib0                   400 Gb/s     3 of 3  2 of 6\n", "  n1   .  yes  no\n"})
    EXPECT_NE(result.out.find(text), std::string::npos) << text << result.out;
  EXPECT_EQ(read_file(folder().path() / "settings"),
            "export NCCL_SOCKET_IFNAME==hsn0\nexport OMPI_MCA_btl_tcp_if_include=hsn0\n"
            "export OMPI_MCA_oob_tcp_if_include=hsn0\n");
}

TEST_F(NetworkTest, AHostThatDoesNotAnswerIsCounted) {
  FileWriter(folder().path() / "n3-is-down").write(std::string_view("yes"));
  const auto result = on_first_host("doctor --interfaces --hostfile " + hosts());
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_NE(result.out.find("network: no interface connects all hosts; 2 of 3 answer\n"),
            std::string::npos)
      << result.out;
}

}  // namespace
}  // namespace tokamak
