// One copy of a rank's State in a mapped file that is memory (step_memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tokamak/core/json.h"
#include "tokamak/core/owned_fd.h"
#include "tokamak/exec/backend.h"

namespace tokamak {

/// The beginning of the file. Its own hash is that of all that follows the hash, and of the text.
struct StepHeader {
  uint64_t hash = 0;  ///< 0 = the copy is not whole
  int64_t step = 0;
  int64_t text_bytes = 0;
  int64_t data_bytes = 0;
  uint64_t data_hash = 0;  ///< of the hashes of all parts
};

class StepSlot {
 public:
  static constexpr int64_t kPage = 4096;
  /// This much of the file system is left to others: where it is full, MPI's ranks die of SIGBUS.
  static constexpr int64_t kLeftBytes = int64_t{256} << 20;

  /// Opens the file, or makes it, of `bytes` bytes; the data lie from `data_at` on, after a page
  /// for the header and the text. Takes no memory. Throws SystemError.
  StepSlot(const std::filesystem::path& path, int64_t bytes, int64_t data_at, Backend& backend,
           int num_threads);
  StepSlot(const StepSlot&) = delete;
  StepSlot& operator=(const StepSlot&) = delete;
  ~StepSlot();

  int64_t bytes() const { return bytes_; }

  /// Whether the file had all of its memory when it was opened, and how much of it. What lacks must
  /// be taken before anything is read or written: a fault on memory that is short would be a
  /// SIGBUS.
  bool had_memory() const { return held_bytes_ >= bytes_; }

  int64_t held_bytes() const { return held_bytes_; }

  /// Takes the memory of a range; any threads may call it. Throws SystemError.
  void take(int64_t at, int64_t bytes) const;

  /// Lets the device write to more of the file by itself, at most a part of it at a time, since
  /// pinning keeps the driver busy.
  void pin_more();

  std::byte* data() const { return base_ + data_at_; }

  void clear();
  void seal(int64_t step, const std::string& text, int64_t data_bytes, uint64_t data_hash);

  /// Returns the header if the copy was finished and holds `bytes` bytes of data.
  std::optional<StepHeader> header(int64_t data_bytes) const;

  Json train_state(const StepHeader& header) const;

 private:
  uint64_t own_hash(const StepHeader& header) const;

  Backend& backend_;
  std::filesystem::path path_;
  int64_t bytes_;
  int64_t data_at_;
  int num_threads_;
  OwnedFd fd_;
  std::byte* base_ = nullptr;
  int64_t held_bytes_ = 0;
  int64_t pinned_bytes_ = 0;
};

}  // namespace tokamak
