#include "tokamak/launch/slurm/slurm_job.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/launch/process/command.h"
#include "tokamak/launch/process/signals.h"

namespace tokamak::launch {
namespace {

namespace fs = std::filesystem;

/// Returns the word after "KEY=" in a line of scontrol's, or "".
std::string field(const std::string& line, const std::string& key) {
  const size_t at = line.find(" " + key + "=");
  if (at == std::string::npos) return "";
  const size_t first = at + key.size() + 2;
  return line.substr(first, line.find(' ', first) - first);
}

/// Prints what is added to a file.
class Tail {
 public:
  explicit Tail(fs::path file) : file_(std::move(file)) {}

  void print() {
    std::ifstream file(file_, std::ios::binary);
    if (!file || !file.seekg(at_)) return;
    char part[1 << 14];
    while (file.read(part, sizeof part), file.gcount() > 0) {
      std::fwrite(part, 1, static_cast<size_t>(file.gcount()), stdout);
      at_ += file.gcount();
    }
    std::fflush(stdout);
  }

 private:
  fs::path file_;
  std::streamoff at_ = 0;
};

bool is_over(const std::string& state) {
  const auto over = {"COMPLETED", "FAILED",    "CANCELLED",     "TIMEOUT",
                     "DEADLINE",  "BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED"};
  return std::ranges::find(over, state) != over.end();
}

// A controller that is away has other words.
bool has_forgotten(const std::string& answer) {
  return answer.find("Invalid job id") != std::string::npos;
}

// Returns the id in what `sbatch --parsable` prints, "4711" or "4711;cluster", or "". A site's
// filter may print lines before it.
std::string job_id_in(const std::string& out) {
  std::string id;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find(';'), line.size()));
    if (!line.empty() && line.find_first_not_of("0123456789") == std::string::npos) id = line;
  }
  return id;
}

int code_of(const SlurmState& state) {
  constexpr int kSlurmEndedIt = static_cast<int>(ExitCode::kTryAgain);
  if (state.state == "COMPLETED") return 0;
  return state.exit_code != 0 ? state.exit_code : kSlurmEndedIt;
}

}  // namespace

std::string submit(const BatchJob& job) {
  TOK_REQUIRE(is_on_path("sbatch"),
              "tokamak launch --slurm: no sbatch on PATH; --dry-run prints the script");
  make_folders(job.folder);
  const fs::path draft = job.folder / fmt::format("slurm-draft-{}.sh", getpid());
  write_file_atomic(draft, to_script(job));
  const CommandResult result = run_command({"sbatch", "--parsable"}, draft);
  const std::string id = job_id_in(result.out);
  std::string text = result.out + "\n" + result.err;
  std::ranges::replace(text, '\n', ' ');
  text = trimmed(text);
  if (result.exit_code != 0) {
    fs::remove(draft);
    fail("tokamak launch --slurm: Slurm refuses the job: {}", text);
  }
  TOK_REQUIRE(!id.empty(),
              "tokamak launch --slurm: sbatch has taken the job and names no id, so it cannot be "
              "followed; squeue --me shows it: {}",
              text);
  if (!result.err.empty()) fmt::print(stderr, "{}\n", result.err);
  fs::rename(draft, job.folder / fmt::format("slurm-{}.sh", id));
  return id;
}

std::optional<SlurmState> parse_state(const std::string& line) {
  SlurmState state{.state = field(line, "JobState"), .reason = field(line, "Reason")};
  if (state.state.empty()) return std::nullopt;
  const std::string code = field(line, "ExitCode");
  const size_t colon = std::min(code.find(':'), code.size());
  state.exit_code = std::atoi(code.c_str());
  const int signal = colon < code.size() ? std::atoi(code.c_str() + colon + 1) : 0;
  if (state.exit_code == 0 && signal > 0) state.exit_code = 128 + signal;
  state.is_over = is_over(state.state);
  return state;
}

int follow(const std::string& id, const fs::path& folder, std::chrono::milliseconds between) {
  const timespec look_again{.tv_sec = between.count() / 1000,
                            .tv_nsec = between.count() % 1000 * 1'000'000};
  constexpr int kStopped = 130;
  constexpr int kMostUnanswered = 60;
  constexpr int kMostUnknown = 3;
  const LaunchSignals signals;
  Tail job_log(folder / fmt::format("slurm-{}.log", id));
  Tail rank_log(folder / fmt::format("slurm-{}", id) / "rank-0.log");
  std::string said;
  SlurmState last;
  int unanswered = 0;
  int unknown = 0;
  for (int64_t look = 0;; ++look) {
    // Slurm's controller is asked rarely; files are read often.
    const bool asks = look % 4 == 0;
    const CommandResult answer =
        asks ? run_command({"scontrol", "show", "job", id, "--oneliner"}) : CommandResult();
    const auto state = parse_state(answer.out);
    job_log.print();
    rank_log.print();
    if (signals.must_stop()) {
      fmt::print(
          stderr,
          "\ntokamak launch: no longer following; job {0} keeps running. `scancel {0}` ends it, "
          "`tail -F {1}` follows it\n",
          id, (folder / fmt::format("slurm-{}", id) / "rank-0.log").string());
      return kStopped;
    }
    if (state) last = *state;
    if (asks) unanswered = state ? 0 : unanswered + 1;
    if (asks) unknown = has_forgotten(answer.out + answer.err) ? unknown + 1 : 0;
    const bool waits = last.state == "PENDING" && last.reason != "None";
    const std::string says = waits ? last.state + ", " + last.reason : last.state;
    if (says != said && !says.empty()) {
      fmt::print(stderr, "tokamak launch: job {} {}\n", id, says);
      said = says;
    }
    if (last.is_over) return code_of(last);
    // Slurm forgets a job some minutes after its end (MinJobAge).
    if (unknown == kMostUnknown) {
      fmt::print(stderr,
                 "tokamak launch: Slurm no longer knows job {0}; `sacct -j {0}` may know how it "
                 "ended, and {1} holds what it wrote\n",
                 id, (folder / fmt::format("slurm-{}.log", id)).string());
      return static_cast<int>(ExitCode::kTryAgain);
    }
    if (unanswered == 1 && unknown == 0)
      fmt::print(stderr, "tokamak launch: Slurm's controller does not answer; job {} may go on\n",
                 id);
    if (unanswered == kMostUnanswered) {
      fmt::print(stderr,
                 "tokamak launch: Slurm has not answered for job {} for two minutes; `sacct -j {}` "
                 "may know how it ended\n",
                 id, id);
      return static_cast<int>(ExitCode::kTryAgain);
    }
    ppoll(nullptr, 0, &look_again, &signals.mask());
  }
}

}  // namespace tokamak::launch
