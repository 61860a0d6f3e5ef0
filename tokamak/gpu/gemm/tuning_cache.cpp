#include "tokamak/gpu/gemm/tuning_cache.h"

#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"

namespace tokamak::gpu {
namespace {

// Holds PATH.lock for its lifetime. Where files cannot be locked, the last writer wins.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path)
      : fd_(open((path.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }

  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  int fd_;
};

std::string to_hex(const TunedChoice& choice) {
  std::string text;
  for (const uint64_t word : choice.algo) text += fmt::format("{:016x}", word);
  return text;
}

TunedChoice parse_choice(const Json& entry, const std::string& what) {
  TunedChoice choice{.microseconds = json_member<double>(entry, "microseconds", what)};
  const auto hex = json_member<std::string>(entry, "algo", what);
  TOK_REQUIRE(hex.size() == 16 * choice.algo.size(), "{}: \"algo\" has {} digits", what,
              hex.size());
  for (size_t i = 0; i < choice.algo.size(); ++i) {
    const char* begin = hex.data() + 16 * i;
    const auto [end, error] = std::from_chars(begin, begin + 16, choice.algo[i], 16);
    TOK_REQUIRE(error == std::errc{} && end == begin + 16, "{}: \"algo\" is not hexadecimal", what);
  }
  return choice;
}

std::optional<TunedChoice> find_in(const Json& all, const std::string& machine,
                                   const std::string& shape, const std::string& what) {
  const auto of_machine = all.find(machine);
  if (of_machine == all.end() || !of_machine->contains(shape)) return std::nullopt;
  return parse_choice((*of_machine)[shape], what);
}

Json read_all(const std::filesystem::path& path) {
  if (!path_exists(path)) return Json::object();
  Json all = parse_json(read_file(path), path.string());
  TOK_REQUIRE(all.is_object(), "{}: wanted a JSON object", path.string());
  for (const auto& [machine, shapes] : all.items())
    TOK_REQUIRE(shapes.is_object(), "{}: \"{}\": wanted a JSON object", path.string(), machine);
  return all;
}

void note(const std::exception& error) {
  fmt::print(stderr, "note: timed algorithms: {}\n", error.what());
}

}  // namespace

TuningCache::TuningCache(std::filesystem::path path, std::string machine)
    : path_(std::move(path)), machine_(std::move(machine)) {}

std::optional<TunedChoice> TuningCache::find(const std::string& shape) const {
  if (path_.empty()) return std::nullopt;
  try {
    return find_in(read_all(path_), machine_, shape, path_.string());
  } catch (const Error& error) {
    note(error);
    return std::nullopt;
  }
}

TunedChoice TuningCache::add(const std::string& shape, const TunedChoice& choice) {
  if (path_.empty()) return choice;
  try {
    make_folders(path_.parent_path());
    const FileLock lock(path_);
    Json all = Json::object();
    try {
      all = read_all(path_);
      if (const auto before = find_in(all, machine_, shape, path_.string())) return *before;
    } catch (const Error& error) {
      note(error);
    }
    all[machine_][shape] = {{"algo", to_hex(choice)}, {"microseconds", choice.microseconds}};
    write_file_atomic(path_, all.dump(2) + "\n");
  } catch (const Error& error) {
    note(error);
  } catch (const SystemError& error) {
    note(error);
  }
  return choice;
}

}  // namespace tokamak::gpu
