#include "tokamak/launch/process/hosts.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tokamak/core/error.h"

namespace tokamak::launch {
namespace {

constexpr int kMostFailures = 2;

std::optional<int64_t> slots_in(const std::string& line, const std::string& file) {
  const std::string key = "slots=";
  const auto at = line.find(key);
  if (at == std::string::npos || (at > 0 && line[at - 1] == '_')) return std::nullopt;
  int64_t slots = 0;
  const char* const first = line.data() + at + key.size();
  const auto [rest, code] = std::from_chars(first, line.data() + line.size(), slots);
  TOK_REQUIRE(code == std::errc() && slots >= 1, "{}: \"{}\": wanted slots=N with N of 1 or more",
              file, line);
  return slots;
}

/// A host may call itself by its short name or by its full one.
bool is_same_host(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto dot_a = a.find('.');
  const auto dot_b = b.find('.');
  if ((dot_a == std::string::npos) == (dot_b == std::string::npos)) return false;
  return a.substr(0, dot_a) == b.substr(0, dot_b);
}

}  // namespace

Hosts::Hosts(std::string_view text, const std::string& name) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::min(line.find('#'), line.size()));
    Host host{.line = line};
    std::istringstream(line) >> host.name;
    if (host.name.empty()) continue;
    host.slots = slots_in(line, name);
    hosts_.push_back(host);
  }
  TOK_REQUIRE(!hosts_.empty(), "tokamak launch: --hostfile {}: it names no host", name);
}

std::optional<std::vector<std::string>> Hosts::choose(int64_t num_ranks) const {
  const bool is_counted =
      std::ranges::all_of(hosts_, [](const Host& host) { return host.slots.has_value(); });
  std::vector<std::string> lines;
  int64_t slots = 0;
  for (const Host& host : hosts_) {
    if (host.failures >= kMostFailures || (is_counted && slots >= num_ranks)) continue;
    lines.push_back(host.line);
    slots += host.slots.value_or(0);
  }
  const bool has_excluded = !excluded().empty();
  if (has_excluded && (lines.empty() || (is_counted && slots < num_ranks))) return std::nullopt;
  return lines;
}

bool Hosts::add_failure(const std::string& host, int count) {
  for (Host& known : hosts_) {
    if (!is_same_host(known.name, host)) continue;
    const bool was_excluded = known.failures >= kMostFailures;
    known.failures += count;
    return !was_excluded && known.failures >= kMostFailures;
  }
  return false;
}

std::vector<std::string> Hosts::names() const {
  std::vector<std::string> names;
  for (const Host& host : hosts_) {
    if (host.failures < kMostFailures) names.push_back(host.name);
  }
  return names;
}

std::vector<std::string> Hosts::excluded() const {
  std::vector<std::string> names;
  for (const Host& host : hosts_) {
    if (host.failures >= kMostFailures) names.push_back(host.name);
  }
  return names;
}

}  // namespace tokamak::launch
