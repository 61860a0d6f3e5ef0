#include "tokamak/launch/process/reachable.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/launch/process/child.h"

namespace tokamak::launch {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSshPatience = 8s;

}  // namespace

std::vector<std::string> remote_words(const std::string& host, const std::string& command) {
  const char* const agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  if (agent != nullptr && std::string(agent).find_first_of(" :") == std::string::npos)
    return {agent, host, command};
  return {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host, command};
}

std::vector<std::string> unreachable_hosts(const std::vector<std::string>& hosts) {
  std::map<pid_t, std::string> asked;
  const auto be_silent = [] {
    const int nothing = open("/dev/null", O_RDWR);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  };
  for (const std::string& host : hosts)
    asked.emplace(start_child(remote_words(host, "true"), be_silent), host);
  std::vector<std::string> lost;
  const auto end = Clock::now() + kSshPatience;
  while (!asked.empty() && Clock::now() < end) {
    for (auto at = asked.begin(); at != asked.end();) {
      int status = 0;
      if (waitpid(at->first, &status, WNOHANG) != at->first) {
        ++at;
        continue;
      }
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) lost.push_back(at->second);
      at = asked.erase(at);
    }
    std::this_thread::sleep_for(20ms);
  }
  for (const auto& [process, host] : asked) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    lost.push_back(host);
  }
  return lost;
}

}  // namespace tokamak::launch
