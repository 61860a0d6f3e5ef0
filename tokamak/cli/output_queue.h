// A standard stream that nothing waits for.
#pragma once

#include <cstdio>
#include <memory>

namespace tokamak::cli {

/// While it lives, a thread writes what is printed to a standard stream, so that a reader that
/// pauses (Ctrl-S, a pager), a disk that is slow and a stream that is full or closed hold up no
/// one. Text that nobody takes is kept up to 16 MiB; a line then says how much was left out.
class OutputQueue {
 public:
  /// `stream` is stdout or stderr. REQUIRES: no other thread uses it during construction and
  /// destruction.
  explicit OutputQueue(std::FILE*& stream);
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  /// Waits for what is left, but no longer than 30 s (3 s after an error) for a reader that takes
  /// nothing.
  ~OutputQueue();

 private:
  struct State;

  std::FILE*& stream_;
  std::FILE* const before_;
  std::shared_ptr<State> state_;  ///< which the thread shares, for it may outlive this
};

}  // namespace tokamak::cli
