#include "tokamak/comm/flight_file.h"

#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

std::filesystem::path path_of(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{}", rank);
}

}  // namespace

FlightFile::FlightFile(const std::filesystem::path& path, int flags)
    : fd_(::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600)) {
  if (fd_.get() < 0) throw_errno("open " + path.string());
  const bool has_room = (flags & O_CREAT) == 0 || ftruncate(fd_.get(), sizeof(FlightPage)) == 0;
  void* const memory =
      has_room ? mmap(nullptr, sizeof(FlightPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
               : MAP_FAILED;
  if (memory == MAP_FAILED) throw_errno("map " + path.string());
  page_ = static_cast<FlightPage*>(memory);
}

FlightFile FlightFile::create(const std::filesystem::path& folder, int rank) {
  const auto path = path_of(folder, rank);
  unlink(path.c_str());
  FlightFile file(path, O_CREAT | O_EXCL);
  if (flock(file.fd_.get(), LOCK_EX | LOCK_NB) != 0) throw_errno("lock " + path.string());
  file.page().rank = rank;
  return file;
}

FlightFile FlightFile::open(const std::filesystem::path& folder, int rank) {
  return {path_of(folder, rank), 0};
}

FlightFile::FlightFile(FlightFile&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

FlightFile& FlightFile::operator=(FlightFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  return *this;
}

FlightFile::~FlightFile() {
  if (page_ != nullptr) munmap(page_, sizeof(FlightPage));
}

bool FlightFile::is_owner_alive() const {
  if (flock(fd_.get(), LOCK_SH | LOCK_NB) != 0) return true;
  flock(fd_.get(), LOCK_UN);
  return false;
}

std::vector<std::string> describe_flights(const std::filesystem::path& folder, int world_size) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    std::error_code code;
    if (std::filesystem::file_size(path_of(folder, rank), code) != sizeof(FlightPage)) continue;
    lines.push_back(describe(FlightFile::open(folder, rank).page()));
  }
  return lines;
}

}  // namespace tokamak
