// A file descriptor that is closed with its owner.
#pragma once

#include <utility>

#include <unistd.h>

namespace tokamak {

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}

  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}

  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;

  ~OwnedFd() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// Returns the descriptor, negative where there is none.
  int get() const { return fd_; }

  /// Returns the descriptor, which the caller closes.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace tokamak
