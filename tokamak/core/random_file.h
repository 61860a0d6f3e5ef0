// A file that is read at any place, wherever it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tokamak {

class RandomFile {
 public:
  virtual ~RandomFile() = default;

  /// Returns the name by which messages call the file: its path or its address.
  virtual const std::string& name() const = 0;

  /// Returns the bytes of the file, which do not change while it is open.
  virtual int64_t size() const = 0;

  /// Fills `out` with the bytes from `offset` on. Any thread may call it. Throws Error naming the
  /// file if it ends too early or, in a store, has changed, and SystemError if it cannot be read.
  virtual void read_at(int64_t offset, std::span<std::byte> out) = 0;
};

/// Opens a regular file of this machine. Throws Error naming the path if it cannot be opened.
std::unique_ptr<RandomFile> open_local_file(const std::filesystem::path& path);

}  // namespace tokamak
