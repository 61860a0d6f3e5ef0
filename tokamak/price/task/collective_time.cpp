#include "tokamak/price/task/collective_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tokamak/core/error.h"

namespace tokamak::price {

namespace {

constexpr double kMib = 1024.0 * 1024.0;
// How far the levels of a hierarchical collective overlap: 1 = not at all. Published: an all-reduce
// of 4 GiB on 4 nodes of 8 B200 takes 22.05 ms, of which 17.9 are the network's and 10.15 NVLink's.
constexpr double kOverlapNorm = 1.6;
// A tree's share of a ring's rate (NVIDIA/nccl src/graph/tuning.cc).
constexpr double kTreeShare = 0.92;
// Messages of an all-to-all that a device has in flight at once (NCCL's batch of sends).
constexpr double kMessagesAtOnce = 8.0;
constexpr double kNever = std::numeric_limits<double>::infinity();

// A group as one level sees it: domains of the level below, which meet in domains of this one.
struct Stage {
  const Level* level = nullptr;
  double inner = 1.0;    ///< members of a domain below, the most
  double outward = 1.0;  ///< the fewest links that carry what leaves such a domain
  double count = 1.0;    ///< domains below in one of this level, the most
  double fewest = 1.0;   ///< members of a domain of this level
  double peers = 0.0;    ///< of a member, in other domains below: the most
  double hops = 0.0;     ///< between domains below, of a ring through the whole group
  double rate = 0.0;     ///< of one member, in the domain with the fewest
  bool is_innermost = true;
};

double overlapped(double a, double b) {
  if (a == 0.0 || b == 0.0) return a + b;
  return std::pow(std::pow(a, kOverlapNorm) + std::pow(b, kOverlapNorm), 1.0 / kOverlapNorm);
}

double size_cost(const Level& level, double bytes) {
  return level.sqrt_s * std::sqrt(bytes / kMib);
}

// If every pair has its own link, few members use few links.
double rate_of(const Level& level, double peers) {
  double rate = level.bytes_per_s;
  if (level.pair_bytes_per_s > 0.0) rate = std::min(rate, level.pair_bytes_per_s * peers);
  return rate * level.efficiency / level.oversubscription;
}

std::vector<Stage> stages_of(const GroupLayout& group, const Machine& machine) {
  std::vector<Stage> stages;
  double inner = 1.0;
  double outward = 1.0;
  double below = group.size;
  for (size_t l = 0; l < group.members.size(); ++l) {
    const double members = group.members[l];
    const double fewest = group.fewest[l];
    const double domains = group.domains[l];
    if (domains >= below) continue;
    const double count = std::max(std::ceil(members / inner), std::ceil(below / domains));
    // A domain of one has no other member to send to.
    const double least = std::ceil(fewest / inner);
    const Level& level = machine.levels[l];
    stages.push_back({.level = &level,
                      .inner = inner,
                      .outward = outward,
                      .count = count,
                      .fewest = fewest,
                      .peers = members - outward,
                      .hops = below - domains,
                      .rate = rate_of(level, (least > 1.0 ? least : count) - 1.0),
                      .is_innermost = l == 0});
    inner = members;
    outward = fewest;
    below = domains;
  }
  return stages;
}

// A device stores what its last neighbour sends and passes it on to none, so its links are idle.
double ring_end(const Stage& s, double bytes) {
  const double rate = s.level->ring_end_bytes_per_s;
  return rate > 0.0 ? bytes / s.count / rate : 0.0;
}

// Returns seconds of one pass of a ring without its end: all-gather or reduce-scatter of `bytes`
// over the stage's domains.
double ring_pass(const Stage& s, double bytes) {
  const double hops = s.count - 1.0;
  const double moving = size_cost(*s.level, bytes) + hops / s.count * bytes / s.rate;
  const double ring = s.level->base_s + hops * s.level->latency_s + moving;
  if (s.level->pair_bytes_per_s == 0.0) return ring;
  return s.level->base_s + s.level->latency_s + moving;  // on a mesh, each to each at once
}

double tree_all_reduce(const Stage& s, double bytes) {
  if (s.is_innermost) return kNever;
  const double hops = 2.0 * std::ceil(std::log2(s.count));
  return s.level->base_s + hops * s.level->latency_s + 2.0 * size_cost(*s.level, bytes) +
         2.0 * bytes / (s.rate * kTreeShare);
}

bool reduces_in_switch(const Stage& s) {
  return s.level->switch_reduce_min_devices > 0 && s.inner == 1.0 &&
         s.fewest >= s.level->switch_reduce_min_devices;
}

double switch_all_reduce(const Stage& s, double bytes) {
  if (!reduces_in_switch(s)) return kNever;
  const Level& level = *s.level;
  return level.switch_reduce_base_s + 2.0 * size_cost(level, bytes) +
         bytes / level.switch_reduce_bytes_per_s;
}

// `passes` is 1 for all-gather or reduce-scatter, 2 for all-reduce.
double stage_seconds(const Stage& s, double bytes, double passes) {
  const double ring = passes * ring_pass(s, bytes) + ring_end(s, bytes);
  if (passes == 1.0) return ring;
  return std::min({ring, tree_all_reduce(s, bytes), switch_all_reduce(s, bytes)});
}

double hierarchical(const std::vector<Stage>& stages, double bytes, double passes) {
  double seconds = 0.0;
  for (const Stage& s : stages) {
    seconds = overlapped(seconds, stage_seconds(s, bytes / s.outward, passes));
  }
  return seconds;
}

// One ring goes through all members. Each level carries it on the links of all members of a domain,
// and each domain carries all of it: NCCL takes the channels of the node that has the fewest
// (NVIDIA/nccl src/init.cc, initTransportsRank).
double flat_ring(const std::vector<Stage>& stages, double size, double bytes, double passes) {
  double rate = kNever;
  double base_s = 0.0;
  double seconds = 0.0;
  for (const Stage& s : stages) {
    base_s = std::max(base_s, s.level->base_s);
    seconds += s.hops * s.level->latency_s + size_cost(*s.level, bytes / s.outward);
    rate = std::min(rate, s.rate * s.outward);
  }
  return passes * (base_s + seconds + (size - 1.0) / size * bytes / rate);
}

// A tree connects the outermost domains and a chain goes through each; every link carries all of it
// up and down.
double tree_of_chains(const std::vector<Stage>& stages, double bytes) {
  double rate = kNever;
  double base_s = 0.0;
  double seconds = 0.0;
  for (const Stage& s : stages) {
    const bool is_outermost = &s == &stages.back();
    const double hops = is_outermost ? std::ceil(std::log2(s.count)) : s.count - 1.0;
    base_s = std::max(base_s, s.level->base_s);
    seconds += 2.0 * (hops * s.level->latency_s + size_cost(*s.level, bytes / s.outward));
    rate = std::min(rate, s.rate * s.outward);
  }
  return base_s + seconds + 2.0 * bytes / (rate * kTreeShare);
}

// Over several nodes NCCL gathers and scatters in one ring through all members, and reduces in that
// ring or a tree of chains; parts of an all-reduce cross nodes from every member at once only where
// a switch reduces in the node (NVIDIA/nccl src/graph/tuning.cc).
double ring_collective(const std::vector<Stage>& stages, double size, double bytes, double passes) {
  if (stages.size() < 2) return hierarchical(stages, bytes, passes);
  const double flat = flat_ring(stages, size, bytes, passes);
  if (passes == 1.0) return flat;
  const double parts = reduces_in_switch(stages[0]) ? hierarchical(stages, bytes, passes) : kNever;
  return std::min({flat, tree_of_chains(stages, bytes), parts});
}

double broadcast(const std::vector<Stage>& stages, double bytes) {
  double seconds = 0.0;
  for (const Stage& s : stages) {
    const Level& level = *s.level;
    seconds = overlapped(seconds, level.base_s + std::ceil(std::log2(s.count)) * level.latency_s +
                                      size_cost(level, bytes) + bytes / s.rate);
  }
  return seconds;
}

double all_to_all(const std::vector<Stage>& stages, double size, double bytes) {
  double base_s = 0.0;
  double latency_s = 0.0;
  double moving_s = 0.0;
  for (const Stage& s : stages) {
    const double sent = bytes * s.peers / size;
    const double rate = rate_of(*s.level, s.count - 1.0);
    base_s = std::max(base_s, s.level->base_s);
    latency_s += s.level->latency_s * std::ceil(s.peers / kMessagesAtOnce);
    moving_s = std::max(moving_s, size_cost(*s.level, sent) + sent / rate);
  }
  return base_s + latency_s + moving_s;
}

double message(const Level& level, double bytes) {
  return level.base_s + level.latency_s + size_cost(level, bytes) + bytes / rate_of(level, 1.0);
}

// The members of a group in one domain each.
struct Spread {
  int most = 0;
  int fewest = 0;
  int domains = 0;
};

Spread spread_of(std::span<const int> ranks, int domain) {
  std::map<int, int> by_domain;
  for (const int rank : ranks) ++by_domain[rank / domain];
  const auto [fewest, most] =
      std::minmax_element(by_domain.begin(), by_domain.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  return {.most = most->second,
          .fewest = fewest->second,
          .domains = static_cast<int>(by_domain.size())};
}

Spread spread_of(int size, int stride, int first, int domain) {
  if (stride >= domain) return {.most = 1, .fewest = 1, .domains = size};
  const int last = first + (size - 1) * stride;
  const int domains = last / domain - first / domain + 1;
  if (domains == 1) return {.most = size, .fewest = size, .domains = 1};
  const int head = (domain - first % domain + stride - 1) / stride;
  const int tail = last % domain / stride + 1;
  Spread out{.most = std::max(head, tail), .fewest = std::min(head, tail), .domains = domains};
  // Domains between the first and the last are few or of two kinds.
  const int least = domain / stride;
  const int most = (domain + stride - 1) / stride;
  for (int i = head; i < size - tail && (out.most < most || out.fewest > least);) {
    const int fit = (domain - (first + i * stride) % domain + stride - 1) / stride;
    out.most = std::max(out.most, fit);
    out.fewest = std::min(out.fewest, fit);
    i += fit;
  }
  return out;
}

template <class Of>
GroupLayout layout_by_level(int size, const Machine& machine, const Of& spread_over) {
  GroupLayout out{.size = size};
  for (const Level& level : machine.levels) {
    const Spread spread = level.num_devices == 0
                              ? Spread{.most = size, .fewest = size, .domains = 1}
                              : spread_over(level.num_devices);
    out.members.push_back(spread.most);
    out.fewest.push_back(spread.fewest);
    out.domains.push_back(spread.domains);
  }
  if (size == 1) return out;
  TOK_REQUIRE(!machine.levels.empty(), "{}: no levels: a machine of one device", machine.name);
  TOK_REQUIRE(out.members.back() == size,
              "{}: {}.num_devices is {}: wanted a level that connects all ranks of a group of {}",
              machine.name, machine.levels.back().name, machine.levels.back().num_devices, size);
  return out;
}

}  // namespace

int link_of(const GroupLayout& group) {
  const auto whole = std::find(group.members.begin(), group.members.end(), group.size);
  return whole == group.members.end() ? 0 : static_cast<int>(whole - group.members.begin());
}

GroupLayout layout_of(std::span<const int> ranks, const Machine& machine) {
  TOK_CHECK(!ranks.empty(), "a group of nobody");
  return layout_by_level(static_cast<int>(ranks.size()), machine,
                         [&](int domain) { return spread_of(ranks, domain); });
}

GroupLayout strided_layout(int size, int stride, const Machine& machine, int first) {
  TOK_CHECK(size >= 1 && stride >= 1 && first >= 0);
  return layout_by_level(size, machine,
                         [&](int domain) { return spread_of(size, stride, first, domain); });
}

double collective_seconds(Collective kind, double bytes, const GroupLayout& group,
                          const Machine& machine) {
  if (group.size <= 1) return 0.0;
  const std::vector<Stage> stages = stages_of(group, machine);
  const double size = group.size;
  switch (kind) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return ring_collective(stages, size, bytes, 1.0);
    case Collective::kAllReduce:
      return ring_collective(stages, size, bytes, 2.0);
    case Collective::kAllToAll:
      return all_to_all(stages, size, bytes);
    case Collective::kBroadcast:
      return broadcast(stages, bytes);
    case Collective::kSendRecv:
      return message(*stages.back().level, bytes);
  }
  return 0.0;
}

double communication_seconds(const Communication& communication, const GroupLayout& group,
                             const Machine& machine) {
  const Software& software = machine.software;
  const double width = communication.sums_gradients ? software.gradient_bytes / sizeof(float) : 1.0;
  return communication.exposed *
             collective_seconds(communication.kind, communication.bytes * width, group, machine) +
         software.collective_call_s + machine.device.launch_s;
}

}  // namespace tokamak::price
