#include "tokamak/train/run_folder.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

// How long a process may take to end after it was killed.
constexpr std::chrono::seconds kDying{10};

// Returns who the lock file says has the folder; nothing where it cannot be read.
std::optional<FolderHolder> holder_in(const fs::path& path) {
  constexpr uintmax_t kMostBytes = 4096;
  std::error_code code;
  if (fs::file_size(path, code) > kMostBytes || code) return std::nullopt;
  try {
    return parse_holder(read_file(path));
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
}

// Whether the process is on this host and has ended, or is about to: its lock will go.
bool is_ending(const FolderHolder& holder) {
  if (holder.host != host_name()) return false;
  constexpr size_t kFlags = 6;
  constexpr uint64_t kExiting = 4;  // PF_EXITING
  const auto words = process_stat(static_cast<pid_t>(holder.pid));
  return words.size() <= kFlags || words[0] == "Z" || words[0] == "X" ||
         (std::stoull(words[kFlags]) & kExiting) != 0;
}

// Returns the number that follows that of `path`. A file that says nothing has lost a number, which
// any time in seconds is above.
int64_t next_attempt(const fs::path& path, bool is_new) {
  const auto before = holder_in(path);
  if (before) return before->attempt + 1;
  return is_new ? 1 : std::chrono::system_clock::now().time_since_epoch() / std::chrono::seconds(1);
}

std::string shown(const FolderHolder& holder) {
  return fmt::format("process {} on {}{}{}, attempt {}", holder.pid, holder.host,
                     holder.job.empty() ? "" : " of ", holder.job, holder.attempt);
}

[[noreturn]] void refuse(const fs::path& folder, const std::optional<FolderHolder>& holder) {
  fail("job.dump_folder = {}: {} writes there; end that run, or give this one another folder",
       folder.string(), holder ? shown(*holder) : "another process");
}

}  // namespace

std::string to_text(const FolderHolder& h) {
  const OrderedJson json{{"attempt", h.attempt},
                         {"pid", h.pid},
                         {"host", h.host},
                         {"job", h.job},
                         {"restart", h.restart}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::optional<FolderHolder> parse_holder(const std::string& text) {
  const Json json = Json::parse(text.substr(0, text.find('\n')), nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    return FolderHolder{.attempt = json.at("attempt").get<int64_t>(),
                        .pid = json.at("pid").get<int64_t>(),
                        .host = json.at("host").get<std::string>(),
                        .job = json.at("job").get<std::string>(),
                        .restart = json.at("restart").get<int64_t>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

FolderHolder this_process() {
  FolderHolder me{.pid = ::getpid(), .host = host_name()};
  const std::string slurm = environment_variable("SLURM_JOB_ID");
  std::string restart = environment_variable("TOKAMAK_RESTART");
  me.job = environment_variable("TOKAMAK_JOB");
  if (me.job.empty() && !slurm.empty()) {
    me.job = "Slurm job " + slurm;
    restart = environment_variable("SLURM_RESTART_COUNT");
  }
  me.restart = std::atoll(restart.c_str());
  return me;
}

void check_can_make(const fs::path& folder) {
  fs::path there = fs::absolute(folder);
  while (!path_exists(there) && there != there.parent_path()) there = there.parent_path();
  errno = is_folder(there) ? 0 : ENOTDIR;
  if (errno == 0 && ::access(there.c_str(), W_OK | X_OK) == 0) return;
  throw_path_errno("cannot create folder " + folder.string());
}

void check_run_folder(const fs::path& folder) {
  check_can_make(folder);
  const fs::path path = folder / "run.lock";
  OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return;
  const bool is_held = ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  file = OwnedFd();
  const auto holder = holder_in(path);
  if (is_held && holder && !is_ending(*holder)) refuse(folder, holder);
}

RunFolder::RunFolder(const fs::path& folder, FolderHolder me)
    : path_(folder / "run.lock"), me_(std::move(me)) {
  make_folders(folder);
  const auto end = Clock::now() + kDying;
  while (!take()) {
    const auto holder = holder_in(path_);
    // A lock without a text is that of a process that has just taken it.
    const bool may_go = !holder || is_ending(*holder);
    if (holder && !me_.job.empty() && me_.job == holder->job && me_.restart > holder->restart) {
      supersede();
      break;
    }
    if (!may_go || Clock::now() >= end) refuse(folder, holder);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Returns false if another process has the lock.
bool RunFolder::take() {
  fd_ = OwnedFd();
  const bool is_new = !path_exists(path_);
  fd_ = OwnedFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (fd_.get() < 0) throw_path_errno("cannot write " + path_.string());
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    // Without locks only check() tells who has the folder.
    if (errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS)
      throw_errno("flock " + path_.string());
  }

  // A process that was superseded holds the lock of a file that has lost its name.
  struct stat mine {};

  struct stat named {};

  if (::fstat(fd_.get(), &mine) != 0 || ::stat(path_.c_str(), &named) != 0 ||
      mine.st_ino != named.st_ino)
    return false;
  me_.attempt = next_attempt(path_, is_new);
  write(fd_.get());
  return true;
}

// Puts a new file, which this process has locked, in the place of the other's.
void RunFolder::supersede() {
  me_.attempt = next_attempt(path_, false);
  fs::path aside = path_;
  aside += fmt::format(".tmp-{}", me_.pid);
  fd_ = OwnedFd(::open(aside.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd_.get() < 0) throw_path_errno("cannot write " + aside.string());
  ::flock(fd_.get(), LOCK_EX | LOCK_NB);
  write(fd_.get());
  rename_durably(aside, path_);
}

void RunFolder::write(int fd) {
  const std::string text = to_text(me_);
  // The new text is written before the rest of the old one is cut, so that the file is never empty.
  if (::pwrite(fd, text.data(), text.size(), 0) != std::ssize(text) ||
      ::ftruncate(fd, std::ssize(text)) != 0)
    throw_errno("write " + path_.string());
  ::fsync(fd);
}

void RunFolder::check() const {
  // A file that is gone or cannot be read says nothing of another process.
  const auto holder = holder_in(path_);
  TOK_REQUIRE(!holder || to_text(*holder) == to_text(me_),
              "superseded: {} has taken {} since; this run, {}, ends and leaves the folder alone",
              shown(*holder), path_.parent_path().string(), shown(me_));
}

}  // namespace tokamak
