#include "tokamak/launch/network/reachability.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>

namespace tokamak::launch {
namespace {

/// Hosts up to this number connect to all others, and are shown as a matrix.
constexpr size_t kFew = 32;

constexpr std::string_view kProbeMark = "tokamak-probe";
constexpr std::array<std::string_view, 5> kKinds{"interface", "ready", "go", "link", "done"};

const Interface* find(const ProbedHost& host, const std::string& name) {
  for (const ListeningInterface& listening : host.interfaces) {
    if (listening.interface.name == name) return &listening.interface;
  }
  return nullptr;
}

/// The pairs (from, to) that an interface connects.
std::set<std::pair<size_t, size_t>> links_of(const NetworkProbe& probe, const std::string& name) {
  std::set<std::pair<size_t, size_t>> links;
  for (const ProbedLink& link : probe.links) {
    if (link.works && link.interface == name) links.insert({link.from, link.to});
  }
  return links;
}

/// How well one interface connects all hosts.
struct Standing {
  Interface interface;  ///< of the first host that has it, with the speed of the slowest
  size_t num_hosts = 0;
  size_t num_links = 0;
  bool connects_all = false;
};

Standing standing_of(const NetworkProbe& probe, const std::string& name) {
  Standing standing;
  const auto links = links_of(probe, name);
  size_t wanted = 0;
  for (size_t i = 0; i < probe.hosts.size(); ++i) {
    for (const size_t partner : partners_of(i, probe.hosts.size())) {
      ++wanted;
      standing.num_links += links.count({i, partner});
    }
    const Interface* const own = find(probe.hosts[i], name);
    if (own == nullptr) continue;
    if (standing.num_hosts++ == 0) standing.interface = *own;
    standing.interface.mbit_per_s = std::min(standing.interface.mbit_per_s, own->mbit_per_s);
  }
  standing.connects_all =
      standing.num_hosts == probe.hosts.size() && wanted > 0 && standing.num_links == wanted;
  return standing;
}

std::vector<std::string> names_of(const NetworkProbe& probe) {
  std::vector<std::string> names;
  for (const ProbedHost& host : probe.hosts) {
    for (const ListeningInterface& listening : host.interfaces) {
      const std::string& name = listening.interface.name;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::string matrix_of(const NetworkProbe& probe, const std::string& name) {
  size_t width = 2;
  for (const ProbedHost& host : probe.hosts) width = std::max(width, host.host.size());
  const auto links = links_of(probe, name);
  std::string text = fmt::format("{} from, and to:\n  {:<{}}", name, "", width);
  for (const ProbedHost& host : probe.hosts) text += fmt::format("  {:>{}}", host.host, width);
  for (size_t from = 0; from < probe.hosts.size(); ++from) {
    text += fmt::format("\n  {:<{}}", probe.hosts[from].host, width);
    for (size_t to = 0; to < probe.hosts.size(); ++to) {
      const bool is_tried = from != to && find(probe.hosts[from], name) != nullptr &&
                            find(probe.hosts[to], name) != nullptr;
      const char* const cell = !is_tried ? "." : links.count({from, to}) > 0 ? "yes" : "no";
      text += fmt::format("  {:>{}}", cell, width);
    }
  }
  return text + "\n";
}

}  // namespace

std::vector<size_t> partners_of(size_t index, size_t count) {
  std::vector<size_t> partners;
  for (size_t distance = 1; distance < count;
       distance = count <= kFew ? distance + 1 : distance * 2)
    partners.push_back((index + distance) % count);
  return partners;
}

std::optional<Interface> fastest_common(const NetworkProbe& probe) {
  std::optional<Interface> best;
  for (const std::string& name : names_of(probe)) {
    const Standing standing = standing_of(probe, name);
    if (!standing.connects_all) continue;
    if (!best || standing.interface.mbit_per_s > best->mbit_per_s) best = standing.interface;
  }
  return best;
}

std::string to_table(const NetworkProbe& probe) {
  const auto best = fastest_common(probe);
  std::string text = fmt::format("{:<15}  {:>13}  {:>9}  {}\n", "interface", "speed", "hosts",
                                 "connections that work");
  std::string matrices;
  for (const std::string& name : names_of(probe)) {
    const Standing standing = standing_of(probe, name);
    const size_t n = probe.hosts.size();
    text += fmt::format("{:<15}  {:>13}  {:>9}  {} of {}{}\n", name, speed_text(standing.interface),
                        fmt::format("{} of {}", standing.num_hosts, n), standing.num_links,
                        n * partners_of(0, n).size(),
                        best && best->name == name ? "  <- the fastest that connects all" : "");
    if (standing.num_hosts > 1 && !standing.connects_all && n <= kFew)
      matrices += matrix_of(probe, name);
  }
  return text + matrices;
}

std::string speed_text(const Interface& interface) {
  if (interface.mbit_per_s == 0) return "speed unknown";
  return fmt::format("{:g} Gb/s", static_cast<double>(interface.mbit_per_s) * 1e-3);
}

std::string to_line(const ProbeLine& line) {
  const auto& [interface, port] = line.listening;
  std::string text = fmt::format("{} {}", kProbeMark, kKinds.at(static_cast<size_t>(line.kind)));
  if (line.kind != ProbeLine::Kind::kGo) text += fmt::format(" {} {}", line.id, line.host);
  if (line.kind == ProbeLine::Kind::kInterface)
    text +=
        fmt::format(" {} {} {} {}", interface.name, interface.address, port, interface.mbit_per_s);
  if (line.kind == ProbeLine::Kind::kLink)
    text += fmt::format(" {} {} {}", interface.name, line.to, line.works ? 1 : 0);
  return text + "\n";
}

std::optional<ProbeLine> parse_probe_line(std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string mark;
  std::string kind;
  words >> mark >> kind;
  const auto* const at = std::ranges::find(kKinds, kind);
  if (mark != kProbeMark || at == kKinds.end()) return std::nullopt;
  ProbeLine line{.kind = static_cast<ProbeLine::Kind>(at - kKinds.begin())};
  auto& [interface, port] = line.listening;
  if (line.kind != ProbeLine::Kind::kGo) words >> line.id >> line.host;
  if (line.kind == ProbeLine::Kind::kInterface) {
    words >> interface.name >> interface.address >> port >> interface.mbit_per_s;
    in_addr address{};
    if (inet_pton(AF_INET, interface.address.c_str(), &address) != 1 || port < 1 || port > 65535)
      return std::nullopt;
  }
  if (line.kind == ProbeLine::Kind::kLink) words >> interface.name >> line.to >> line.works;
  const bool has_name =
      line.kind == ProbeLine::Kind::kInterface || line.kind == ProbeLine::Kind::kLink;
  if (!words || (has_name && !is_interface_name(interface.name))) return std::nullopt;
  return line;
}

}  // namespace tokamak::launch
