#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/owned_fd.h"
#include "tokamak/launch/network/interfaces.h"
#include "tokamak/launch/network/probe_network.h"
#include "tokamak/launch/network/reachability.h"

namespace tokamak::launch {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// How long a connection may take.
constexpr auto kPatience = 2s;
/// The probe ends after this time even if whoever started it is gone.
constexpr unsigned kLifeSeconds = 30;

OwnedFd make_socket() {
  return OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

sockaddr_in address_of(const std::string& address, int port) {
  sockaddr_in out{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  inet_pton(AF_INET, address.c_str(), &out.sin_addr);
  return out;
}

bool bind_to(const OwnedFd& socket, const std::string& address) {
  const sockaddr_in own = address_of(address, 0);
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0;
}

int port_of(const OwnedFd& socket) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size);
  return ntohs(own.sin_port);
}

std::string draw_id() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) throw_errno("getrandom");
  return fmt::format("{:016x}", number);
}

/// A connection on its way to another host.
struct Attempt {
  OwnedFd socket = make_socket();
  std::string interface;
  std::string to;    ///< the id that is expected there
  std::string read;  ///< what has come
  bool is_over = false;
};

/// Listens on each interface and tells whoever connects its id; connects to its partners and looks
/// whether they are the ones that answer.
class Probe {
 public:
  Probe() : id_(draw_id()), host_(read_launch_environment().host) {
    for (const Interface& interface : list_interfaces()) {
      OwnedFd socket = make_socket();
      constexpr int kBacklog = 128;
      if (!bind_to(socket, interface.address) || listen(socket.get(), kBacklog) != 0) continue;
      own_.push_back({.interface = interface, .port = port_of(socket)});
      listeners_.push_back(std::move(socket));
    }
  }

  void run() {
    for (const ListeningInterface& listening : own_)
      say({.kind = ProbeLine::Kind::kInterface, .listening = listening});
    say({.kind = ProbeLine::Kind::kReady});
    while (!is_going_ && !is_told_to_end_) look(1s);
    if (!is_going_) return;
    connect_to_partners();
    const auto end = Clock::now() + kPatience;
    const auto is_waiting = [&] {
      return std::any_of(attempts_.begin(), attempts_.end(),
                         [](const Attempt& attempt) { return !attempt.is_over; });
    };
    while (is_waiting() && Clock::now() < end && !is_told_to_end_) look(50ms);
    for (const Attempt& attempt : attempts_)
      say({.kind = ProbeLine::Kind::kLink,
           .listening = {.interface = {.name = attempt.interface}},
           .to = attempt.to,
           .works = attempt.read == attempt.to});
    say({.kind = ProbeLine::Kind::kDone});
    while (!is_told_to_end_) look(1s);  // others may still connect
  }

 private:
  void say(ProbeLine line) const {
    line.id = id_;
    line.host = host_;
    fmt::print("{}", to_line(line));
    std::fflush(stdout);
  }

  void connect_to_partners() {
    const auto self = std::find_if(hosts_.begin(), hosts_.end(),
                                   [&](const ProbedHost& host) { return host.id == id_; });
    if (self == hosts_.end()) return;
    for (const size_t partner :
         partners_of(static_cast<size_t>(self - hosts_.begin()), hosts_.size())) {
      for (const auto& [theirs, port] : hosts_[partner].interfaces) {
        for (const ListeningInterface& own : own_) {
          if (own.interface.name == theirs.name)
            begin(own.interface, hosts_[partner].id, address_of(theirs.address, port));
        }
      }
    }
  }

  void begin(const Interface& own, const std::string& to, const sockaddr_in& address) {
    Attempt attempt{.interface = own.name, .to = to};
    // From the address of this interface, as NCCL and MPI do.
    const bool is_bound = bind_to(attempt.socket, own.address);
    const int status =
        connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    attempt.is_over = !is_bound || (status != 0 && errno != EINPROGRESS);
    attempts_.push_back(std::move(attempt));
  }

  /// Waits for something to happen, and answers it.
  void look(std::chrono::milliseconds patience) {
    std::vector<pollfd> events{{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
    for (const OwnedFd& listener : listeners_)
      events.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
    for (const Attempt& attempt : attempts_)
      events.push_back(
          {.fd = attempt.is_over ? -1 : attempt.socket.get(), .events = POLLIN, .revents = 0});
    if (poll(events.data(), events.size(), static_cast<int>(patience.count())) <= 0) return;
    if (events[0].revents != 0) read_lines();
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (events[1 + i].revents != 0) answer(listeners_[i]);
    }
    for (size_t i = 0; i < attempts_.size() && 1 + listeners_.size() + i < events.size(); ++i) {
      if (events[1 + listeners_.size() + i].revents != 0) read_id(attempts_[i]);
    }
  }

  void answer(const OwnedFd& listener) const {
    const OwnedFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() >= 0) send(peer.get(), id_.data(), id_.size(), MSG_NOSIGNAL);
  }

  static void read_id(Attempt& attempt) {
    char part[64];
    const ssize_t count = read(attempt.socket.get(), part, sizeof part);
    if (count > 0) attempt.read.append(part, static_cast<size_t>(count));
    attempt.is_over = count <= 0 || attempt.read.size() >= attempt.to.size();
  }

  void read_lines() {
    char part[1 << 12];
    const ssize_t count = read(STDIN_FILENO, part, sizeof part);
    if (count <= 0) {
      is_told_to_end_ = true;
      return;
    }
    input_.append(part, static_cast<size_t>(count));
    for (size_t end = 0; (end = input_.find('\n')) != std::string::npos; input_.erase(0, end + 1)) {
      const auto line = parse_probe_line(std::string_view(input_).substr(0, end));
      if (line) take(*line);
    }
  }

  void take(const ProbeLine& line) {
    if (line.kind == ProbeLine::Kind::kGo) is_going_ = true;
    if (line.kind == ProbeLine::Kind::kReady) {
      hosts_.push_back({.id = line.id, .host = line.host, .interfaces = std::move(listening_)});
      listening_.clear();
    }
    if (line.kind == ProbeLine::Kind::kInterface) listening_.push_back(line.listening);
  }

  std::string id_;
  std::string host_;
  std::vector<ListeningInterface> own_;
  std::vector<OwnedFd> listeners_;  ///< of own_
  std::vector<Attempt> attempts_;
  std::vector<ProbedHost> hosts_;
  std::vector<ListeningInterface> listening_;  ///< of the host whose lines are being read
  std::string input_;
  bool is_going_ = false;
  bool is_told_to_end_ = false;
};

}  // namespace

int run_launch_probe() {
  alarm(kLifeSeconds);
  Probe().run();
  return 0;
}

}  // namespace tokamak::launch
