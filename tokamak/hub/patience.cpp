#include "tokamak/hub/patience.h"

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(500);

bool may_pass(int status) {
  return status == 0 || status == 408 || status == 429 || status >= 500;
}

}  // namespace

HttpReply with_patience(const std::string& url, const std::function<HttpReply()>& request,
                        int most) {
  auto pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    HttpReply reply = request();
    if (!may_pass(reply.status)) return reply;
    if (tries == most) {
      throw SystemError(fmt::format(
          "{}: {}, {} times", printable(url),
          reply.status == 0 ? reply.broken : fmt::format("the server answered {}", reply.status),
          most));
    }
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

std::string header_of(const HttpReply& reply, const char* name) {
  const auto found = reply.headers.find(name);
  return found == reply.headers.end() ? "" : found->second;
}

}  // namespace tokamak
