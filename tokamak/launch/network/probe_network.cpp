#include "tokamak/launch/network/probe_network.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host.h"
#include "tokamak/core/timing.h"
#include "tokamak/launch/process/child.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/launch/process/reachable.h"

namespace tokamak::launch {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kStart = 10s;
constexpr auto kProbe = 5s;
/// How long commands may take to end once their input has.
constexpr auto kEnd = 1s;
constexpr const char* kNcclVariable = "NCCL_SOCKET_IFNAME";

/// A command whose input we write and whose output we read.
class Command {
 public:
  explicit Command(const std::vector<std::string>& words) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw_errno("pipe");
    id_ = start_child(words, [&] {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);  // hosts that do not answer are counted
    });
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
    fcntl(to_, F_SETFL, O_NONBLOCK);
    fcntl(from_, F_SETFL, O_NONBLOCK);
  }

  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  ~Command() {
    end_input();
    close(from_);
    if (is_running()) kill(-id_, SIGKILL);
    if (id_ > 0) waitpid(id_, nullptr, 0);
  }

  bool has_answered = false;

  bool is_running() {
    if (id_ > 0 && waitpid(id_, nullptr, WNOHANG) == id_) id_ = 0;
    return id_ > 0;
  }

  void end_input() {
    if (to_ >= 0) close(std::exchange(to_, -1));
  }

  void send(const std::string& text) { unsent_ += text; }

  pollfd output() const { return {.fd = is_drained_ ? -1 : from_, .events = POLLIN, .revents = 0}; }

  pollfd input() const {
    return {.fd = unsent_.empty() ? -1 : to_, .events = POLLOUT, .revents = 0};
  }

  void write() {
    const ssize_t count = ::write(to_, unsent_.data(), unsent_.size());
    if (count < 0 && errno != EAGAIN) return unsent_.clear();  // its reader has gone
    unsent_.erase(0, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }

  void read(const std::function<void(const ProbeLine&)>& take) {
    char part[1 << 14];
    const ssize_t count = ::read(from_, part, sizeof part);
    is_drained_ = count == 0;
    if (count <= 0) return;
    unread_.append(part, static_cast<size_t>(count));
    for (size_t end = 0; (end = unread_.find('\n')) != std::string::npos;
         unread_.erase(0, end + 1)) {
      const auto line = parse_probe_line(std::string_view(unread_).substr(0, end));
      if (line) take(*line);
    }
  }

 private:
  pid_t id_ = 0;
  int to_ = -1;
  int from_ = -1;
  bool is_drained_ = false;
  std::string unsent_;
  std::string unread_;
};

/// A host that goes is no reason to end: its pipe has no reader.
class IgnoredBrokenPipes {
 public:
  IgnoredBrokenPipes() : before_(std::signal(SIGPIPE, SIG_IGN)) {}

  IgnoredBrokenPipes(const IgnoredBrokenPipes&) = delete;
  IgnoredBrokenPipes& operator=(const IgnoredBrokenPipes&) = delete;

  ~IgnoredBrokenPipes() { std::signal(SIGPIPE, before_); }

 private:
  void (*before_)(int);
};

/// Gathers what the probes say.
class Gathering {
 public:
  Gathering(const std::vector<std::vector<std::string>>& commands, size_t num_hosts)
      : num_hosts_(num_hosts) {
    for (const auto& words : commands) commands_.push_back(std::make_unique<Command>(words));
  }

  NetworkProbe run() {
    const auto start = Clock::now();
    pump(kStart, [&] { return probe_.hosts.size() + num_lost() >= num_hosts_; });
    // The order of hosts should not depend on who was first.
    std::stable_sort(probe_.hosts.begin(), probe_.hosts.end(),
                     [](const ProbedHost& a, const ProbedHost& b) { return a.host < b.host; });
    const std::string text = text_of_hosts();
    for (const auto& command : commands_) command->send(text);
    is_probing_ = true;
    pump(kProbe, [&] { return num_done_ == probe_.hosts.size(); });
    probe_.seconds = seconds_since(start);
    end_commands();
    return std::move(probe_);
  }

 private:
  void end_commands() {
    for (const auto& command : commands_) command->end_input();
    const auto is_running = [](const auto& command) { return command->is_running(); };
    const auto end = Clock::now() + kEnd;
    while (std::any_of(commands_.begin(), commands_.end(), is_running) && Clock::now() < end)
      std::this_thread::sleep_for(10ms);
  }

  void pump(std::chrono::milliseconds patience, const std::function<bool()>& is_over) {
    const auto end = Clock::now() + patience;
    while (!is_over() && Clock::now() < end && has_output()) {
      std::vector<pollfd> events;
      for (const auto& command : commands_) {
        events.push_back(command->output());
        events.push_back(command->input());
      }
      poll(events.data(), events.size(), 50);
      for (size_t i = 0; i < commands_.size(); ++i) {
        if (events[2 * i].revents != 0)
          commands_[i]->read([&](const ProbeLine& line) { take(line, *commands_[i]); });
        if (events[2 * i + 1].revents != 0) commands_[i]->write();
      }
    }
  }

  bool has_output() const {
    return std::any_of(commands_.begin(), commands_.end(),
                       [](const auto& command) { return command->output().fd >= 0; });
  }

  /// Commands that have ended without an answer; each was for a host, where there are several.
  size_t num_lost() const {
    return static_cast<size_t>(std::count_if(
        commands_.begin(), commands_.end(),
        [](const auto& command) { return command->output().fd < 0 && !command->has_answered; }));
  }

  void take(const ProbeLine& line, Command& from) {
    switch (line.kind) {
      case ProbeLine::Kind::kInterface:
        listening_[line.id].push_back(line.listening);
        return;
      case ProbeLine::Kind::kReady:
        from.has_answered = true;
        if (!is_probing_)
          probe_.hosts.push_back(
              {.id = line.id, .host = line.host, .interfaces = listening_[line.id]});
        return;
      case ProbeLine::Kind::kLink:
        probe_.links.push_back({.interface = line.listening.interface.name,
                                .from = index_of(line.id),
                                .to = index_of(line.to),
                                .works = line.works});
        return;
      case ProbeLine::Kind::kDone:
        ++num_done_;
        return;
      case ProbeLine::Kind::kGo:
        return;
    }
  }

  size_t index_of(const std::string& id) const {
    const auto at = std::find_if(probe_.hosts.begin(), probe_.hosts.end(),
                                 [&](const ProbedHost& host) { return host.id == id; });
    return static_cast<size_t>(at - probe_.hosts.begin());
  }

  std::string text_of_hosts() const {
    std::string text;
    for (const ProbedHost& host : probe_.hosts) {
      for (const ListeningInterface& listening : host.interfaces)
        text += to_line({.kind = ProbeLine::Kind::kInterface,
                         .id = host.id,
                         .host = host.host,
                         .listening = listening});
      text += to_line({.kind = ProbeLine::Kind::kReady, .id = host.id, .host = host.host});
    }
    return text + to_line({.kind = ProbeLine::Kind::kGo});
  }

  size_t num_hosts_;
  std::vector<std::unique_ptr<Command>> commands_;
  std::map<std::string, std::vector<ListeningInterface>> listening_;  ///< by id
  NetworkProbe probe_;
  size_t num_done_ = 0;
  bool is_probing_ = false;
};

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace

NetworkProbe probe_network(const std::vector<std::vector<std::string>>& commands,
                           size_t num_hosts) {
  const IgnoredBrokenPipes ignored;
  return Gathering(commands, num_hosts).run();
}

NetworkProbe probe_hosts(const std::vector<std::string>& hosts) {
  const std::string own_host = read_launch_environment().host;
  std::vector<std::vector<std::string>> commands;
  for (const std::string& host : hosts) {
    const bool is_own = host == own_host || host == "localhost";
    commands.push_back(is_own ? std::vector<std::string>{own_program(), "launch-probe"}
                              : remote_words(host, shell_word(own_program()) + " launch-probe"));
  }
  return probe_network(commands, hosts.size());
}

NetworkProbe probe_allocation(size_t num_nodes) {
  const std::string count = std::to_string(num_nodes);
  return probe_network({{"srun", "--mpi=none", "--nodes=" + count, "--ntasks=" + count,
                         "--ntasks-per-node=1", "--cpu-bind=none", own_program(), "launch-probe"}},
                       num_nodes);
}

bool has_chosen_interface() {
  const char* const variables[] = {kNcclVariable, "OMPI_MCA_btl_tcp_if_include",
                                   "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include",
                                   "OMPI_MCA_oob_tcp_if_exclude"};
  return std::ranges::any_of(variables,
                             [](const char* name) { return !environment_variable(name).empty(); });
}

std::vector<std::pair<std::string, std::string>> interface_variables(const std::string& name) {
  return {{kNcclVariable, "=" + name},  // without '=' NCCL takes the name for a prefix
          {"OMPI_MCA_btl_tcp_if_include", name},
          {"OMPI_MCA_oob_tcp_if_include", name}};
}

}  // namespace tokamak::launch
