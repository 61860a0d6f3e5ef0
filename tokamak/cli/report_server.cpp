#include "tokamak/cli/report_server.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tokamak/core/error.h"

namespace tokamak::cli {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using Base = std::unique_ptr<event_base, Freed<event_base_free>>;
using Server = std::unique_ptr<evhttp, Freed<evhttp_free>>;
using Signal = std::unique_ptr<event, Freed<event_free>>;

void reply(evhttp_request* request, int code, const char* type, std::string_view text) {
  evkeyvalq* headers = evhttp_request_get_output_headers(request);
  evhttp_add_header(headers, "Content-Type", type);
  evhttp_add_header(headers, "Cache-Control", "no-store");
  evbuffer_add(evhttp_request_get_output_buffer(request), text.data(), text.size());
  evhttp_send_reply(request, code, nullptr, nullptr);
}

void answer(evhttp_request* request, void* served) {
  constexpr const char* kPlain = "text/plain; charset=utf-8";
  const auto& page = *static_cast<const ServedPage*>(served);
  const char* host = evhttp_request_get_host(request);
  const std::string_view name = host == nullptr ? "" : host;
  const std::string_view path = evhttp_request_get_uri(request);
  if (name != "localhost" && name != "127.0.0.1")
    return reply(request, HTTP_BADREQUEST, kPlain, "wanted localhost as the host\n");
  try {
    if (path == "/") return reply(request, HTTP_OK, "text/html; charset=utf-8", page.html());
    if (path == "/data") return reply(request, HTTP_OK, "application/json", page.data());
    reply(request, HTTP_NOTFOUND, kPlain, "there are / and /data\n");
  } catch (const std::exception& error) {
    reply(request, HTTP_SERVUNAVAIL, kPlain, error.what());
  }
}

uint16_t port_of(evhttp_bound_socket* bound) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (getsockname(evhttp_bound_socket_get_fd(bound), reinterpret_cast<sockaddr*>(&address),
                  &size) != 0)
    throw_errno("getsockname");
  return ntohs(address.sin_port);
}

}  // namespace

void serve_page(const ServedPage& page, uint16_t port, const std::function<void(uint16_t)>& ready) {
  std::signal(SIGPIPE, SIG_IGN);  // a browser that closes its connection
  const Base base(event_base_new());
  const Server server(evhttp_new(base.get()));
  TOK_CHECK(server != nullptr, "libevent made no server");
  const auto stop = [](evutil_socket_t, short, void* loop) {
    event_base_loopbreak(static_cast<event_base*>(loop));
  };
  const Signal interrupt(evsignal_new(base.get(), SIGINT, stop, base.get()));
  const Signal terminate(evsignal_new(base.get(), SIGTERM, stop, base.get()));
  event_add(interrupt.get(), nullptr);
  event_add(terminate.get(), nullptr);

  evhttp_set_allowed_methods(server.get(), EVHTTP_REQ_GET);
  evhttp_set_gencb(server.get(), answer, const_cast<ServedPage*>(&page));
  evhttp_bound_socket* bound = evhttp_bind_socket_with_handle(server.get(), "127.0.0.1", port);
  TOK_REQUIRE(bound != nullptr, "--port {}: {}; --port 0 takes any that is free", port,
              std::strerror(errno));
  ready(port_of(bound));
  event_base_dispatch(base.get());
}

}  // namespace tokamak::cli
