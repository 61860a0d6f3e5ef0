#include "tokamak/cli/launch/reachable.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 8s;

pid_t start(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw_errno("fork");
  if (child > 0) return child;
  const int nothing = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  execvp(argv[0], argv.data());
  _exit(1);
}

}  // namespace

std::vector<std::string> remote_words(const std::string& host, const std::string& command) {
  const char* const agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  if (agent != nullptr && std::string(agent).find_first_of(" :") == std::string::npos)
    return {agent, host, command};
  return {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host, command};
}

std::vector<std::string> unreachable_hosts(const std::vector<std::string>& hosts) {
  std::map<pid_t, std::string> asked;
  for (const std::string& host : hosts) asked.emplace(start(remote_words(host, "true")), host);
  std::vector<std::string> lost;
  const auto end = Clock::now() + kPatience;
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

}  // namespace tokamak::cli
