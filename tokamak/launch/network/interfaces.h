// The network interfaces of this host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::launch {

struct Interface {
  std::string name;
  std::string address;     ///< IPv4, as 10.0.0.7
  int64_t mbit_per_s = 0;  ///< of the link; 0 = the driver does not say
};

/// Whether NCCL and MPI can be told this name, which may come from another host: letters, digits,
/// '.', '_' and '-'.
bool is_interface_name(std::string_view name);

/// Returns the interfaces that run and have an IPv4 address, except loopback, in the kernel's
/// order.
std::vector<Interface> list_interfaces();

}  // namespace tokamak::launch
