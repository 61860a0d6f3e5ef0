// A library for LD_PRELOAD that makes calls of a rank fail, hang or kill it, so that the program
// under test is the one that users run. TOK_FAULT holds rules, separated by ';', each of words
// KEY=VALUE separated by ','. fault_run.h says what they mean.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

struct Rule {
  std::string call;
  std::string path;   ///< a part of it; empty = any
  std::string once;   ///< fires only if it makes this file
  std::string after;  ///< fires only if this file is there
  std::string what = "kill";
  int number = 0;  ///< an errno, a signal, seconds or a code
  long first = 1;  ///< the first call that it is for
  long times = 1;  ///< 0 = all later ones
  std::atomic<long> calls{0};
};

constexpr std::pair<const char*, int> kErrors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EROFS", EROFS},   {"ESTALE", ESTALE},
    {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}};

std::vector<Rule*>* rules = nullptr;
std::atomic<long> clock_offset_s{0};

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

/// The verb of a Tokamak process; of another program its name.
std::string own_role() {
  std::ifstream file("/proc/self/cmdline");
  const auto words = split({std::istreambuf_iterator<char>(file), {}}, '\0');
  if (words.empty()) return "";
  const std::string name = words[0].substr(words[0].rfind('/') + 1);
  return name == "tokamak" && words.size() > 1 ? words[1] : name;
}

void set_action(Rule& rule, const std::string& text) {
  const auto colon = text.find(':');
  rule.what = text.substr(0, colon);
  const std::string detail = colon == std::string::npos ? "" : text.substr(colon + 1);
  rule.number = std::atoi(detail.c_str());
  for (const auto& [name, code] : kErrors) {
    if (detail == name) rule.number = code;
  }
}

void add_rule(const std::string& text, const std::string& role, const char* rank) {
  auto rule = std::make_unique<Rule>();
  std::string wanted_role = "train";
  bool is_for_me = true;
  for (const std::string& word : split(text, ',')) {
    const auto equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    if (key == "in") wanted_role = value;
    if (key == "rank") is_for_me = is_for_me && value == (rank == nullptr ? "0" : rank);
    if (key == "call") rule->call = value;
    if (key == "path") rule->path = value;
    if (key == "once") rule->once = value;
    if (key == "after") rule->after = value;
    if (key == "nth") rule->first = std::atol(value.c_str());
    if (key == "times") rule->times = std::atol(value.c_str());
    if (key == "do") set_action(*rule, value);
  }
  if (!is_for_me || role != wanted_role) return;
  if (rule->what == "clock" && rule->call.empty()) clock_offset_s = rule->number;
  rules->push_back(rule.release());
}

__attribute__((constructor)) void read_rules() {
  auto* const all = new std::vector<Rule*>;
  const char* const text = std::getenv("TOK_FAULT");
  const std::string role = own_role();
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  rules = all;
  for (const std::string& rule : split(text == nullptr ? "" : text, ';')) {
    add_rule(rule, role, rank);
  }
}

bool is_first_time(const Rule& rule) {
  if (rule.once.empty()) return true;
  const auto real_open = next<int (*)(const char*, int, ...)>("open");
  const int fd = real_open(rule.once.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/// Does what the rules say about this call; returns whether it must fail, with errno set.
bool fails(const char* call, const char* path) {
  if (rules == nullptr) return false;
  for (Rule* const rule : *rules) {
    if (rule->call != call) continue;
    if (!rule->path.empty() &&
        (path == nullptr || std::strstr(path, rule->path.c_str()) == nullptr))
      continue;
    if (!rule->after.empty() && access(rule->after.c_str(), F_OK) != 0) continue;
    const long number = ++rule->calls;
    if (number < rule->first || (rule->times > 0 && number >= rule->first + rule->times)) continue;
    if (!is_first_time(*rule)) continue;
    if (rule->what == "kill") raise(SIGKILL);
    if (rule->what == "stop") raise(SIGSTOP);
    if (rule->what == "signal") kill(getpid(), rule->number);
    if (rule->what == "exit") _exit(rule->number);
    if (rule->what == "hang") {
      for (;;) sleep(3600);
    }
    if (rule->what == "spin") {
      for (volatile bool forever = true; forever;) {
      }
    }
    if (rule->what == "sleep") sleep(static_cast<unsigned>(rule->number));
    if (rule->what == "clock") clock_offset_s += rule->number;
    if (rule->what == "flip") return true;
    if (rule->what == "errno") {
      errno = rule->number;
      return true;
    }
  }
  return false;
}

bool fails_on(const char* call, int fd) {
  if (rules == nullptr || rules->empty()) return false;
  char name[64];
  char path[4096];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(name, path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  return fails(call, path);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  return fails("open", path) ? -1 : real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  return fails("open", path) ? -1 : real(path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return fails_on("write", fd) ? -1 : real(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return fails_on("write", fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return fails_on("write", fd) ? -1 : real(fd, data, size, at);
}

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  return fails_on("fsync", fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
  static const auto real = next<int (*)(int)>("fdatasync");
  return fails_on("fsync", fd) ? -1 : real(fd);
}

int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return fails("rename", to) ? -1 : real(from, to);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : real(path, mode);
}

int clock_gettime(clockid_t clock, struct timespec* at) {
  static const auto real = next<int (*)(clockid_t, struct timespec*)>("clock_gettime");
  const int code = real(clock, at);
  if (code == 0 && clock == CLOCK_REALTIME) at->tv_sec += clock_offset_s;
  return code;
}

// MPI's calls by their C names, so that this library needs no MPI.
int MPI_Init_thread(int* argc, char*** argv, int wanted, int* offered) {
  static const auto real = next<int (*)(int*, char***, int, int*)>("MPI_Init_thread");
  fails("MPI_Init_thread", nullptr);
  return real(argc, argv, wanted, offered);
}

int MPI_Isend(const void* data, int count, void* type, int to, int tag, void* comm, void* request) {
  static const auto real =
      next<int (*)(const void*, int, void*, int, int, void*, void*)>("MPI_Isend");
  if (!fails("MPI_Isend", nullptr) || count == 0)
    return real(data, count, type, to, tag, comm, request);
  // Only the copy that travels is changed, and it lives until it has arrived.
  auto* const changed = new std::string(static_cast<const char*>(data), static_cast<size_t>(count));
  (*changed)[static_cast<size_t>(count) / 2] ^= 4;
  return real(changed->data(), count, type, to, tag, comm, request);
}

int MPI_Finalize() {
  static const auto real = next<int (*)()>("MPI_Finalize");
  fails("MPI_Finalize", nullptr);
  return real();
}

}  // extern "C"
