#include "tokamak/launch/network/interfaces.h"

#include <algorithm>
#include <fstream>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include "tokamak/core/error.h"

namespace tokamak::launch {
namespace {

int64_t speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int64_t mbit_per_s = 0;
  file >> mbit_per_s;
  return file ? std::max<int64_t>(mbit_per_s, 0) : 0;
}

}  // namespace

bool is_interface_name(std::string_view name) {
  return !name.empty() && name.size() < IFNAMSIZ && name[0] != '-' &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string_view::npos;
}

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const bool runs = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
    const bool is_loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || !runs || is_loopback)
      continue;
    const std::string name = at->ifa_name;
    const bool is_known =
        std::ranges::any_of(interfaces, [&](const Interface& other) { return other.name == name; });
    if (is_known || !is_interface_name(name)) continue;
    char text[INET_ADDRSTRLEN] = "";
    const auto* const address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    interfaces.push_back({.name = name, .address = text, .mbit_per_s = speed_of(name)});
  }
  return interfaces;
}

}  // namespace tokamak::launch
