// A page that is served to browsers on this machine while it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace tokamak::cli {

struct ServedPage {
  std::function<std::string()> html;  ///< answers GET /
  std::function<std::string()> data;  ///< answers GET /data, as JSON
};

/// Serves the page at 127.0.0.1:`port` (0: any free one) until SIGINT or SIGTERM. `ready` gets the
/// port once connections are taken. What a function of `page` throws answers its request with 503
/// and the message. Requests for another host than localhost are refused, so that no site in the
/// browser can read the page by a name of its own that leads here. Throws Error where the port is
/// taken.
void serve_page(const ServedPage& page, uint16_t port, const std::function<void(uint16_t)>& ready);

}  // namespace tokamak::cli
