// Which interface connects all hosts of a job, from what a probe on each host has found.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/launch/network/interfaces.h"

namespace tokamak::launch {

struct ListeningInterface {
  Interface interface;
  int port = 0;
};

struct ProbedHost {
  std::string id;    ///< drawn by its probe
  std::string host;  ///< as it calls itself
  std::vector<ListeningInterface> interfaces;
};

/// Whether a host's interface could connect to the one of the same name on another host.
struct ProbedLink {
  std::string interface;
  size_t from = 0;  ///< index of the host
  size_t to = 0;
  bool works = false;
};

struct NetworkProbe {
  std::vector<ProbedHost> hosts;  ///< that answered
  std::vector<ProbedLink> links;
  double seconds = 0;
};

/// Returns the hosts that host `index` of `count` connects to: all others of few, else those at
/// distances 1, 2, 4 ...
std::vector<size_t> partners_of(size_t index, size_t count);

/// Returns the interface that all hosts have, through which each reaches all its partners, and
/// whose slowest link is the fastest; among equals the first of the first host. The address is the
/// first host's. Returns nothing if there is none.
std::optional<Interface> fastest_common(const NetworkProbe& probe);

/// Returns a line for each interface and, for one that some hosts have and cannot use, which host
/// reaches which.
std::string to_table(const NetworkProbe& probe);

/// Returns "200 Gb/s", or "speed unknown".
std::string speed_text(const Interface& interface);

/// A line that probes and the launcher exchange; other lines come from shells and are not for us.
struct ProbeLine {
  enum class Kind { kInterface, kReady, kGo, kLink, kDone };

  Kind kind = Kind::kGo;
  std::string id;                ///< of the host that it is about; not of kGo
  std::string host;              ///< likewise
  ListeningInterface listening;  ///< of kInterface; of kLink the name alone
  std::string to;                ///< of kLink: the id of the other host
  bool works = false;            ///< of kLink
};

/// Returns one line, whose end is a newline.
std::string to_line(const ProbeLine& line);

/// Returns nothing where the text is not to_line()'s.
std::optional<ProbeLine> parse_probe_line(std::string_view text);

}  // namespace tokamak::launch
