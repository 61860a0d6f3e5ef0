// Library algorithms that were timed on this machine, kept between runs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tokamak::gpu {

/// An algorithm as the bytes that its library lets one store, and its measured time.
struct TunedChoice {
  std::array<uint64_t, 8> algo{};
  double microseconds = 0.0;

  bool operator==(const TunedChoice&) const = default;
};

/// A JSON file that processes may read and extend at once. A damaged file counts as empty, and if
/// it cannot be written nothing is kept; either gives a note on stderr.
class TuningCache {
 public:
  /// `machine` names what the algorithms hold for: device, library, driver. An empty path keeps
  /// nothing.
  TuningCache(std::filesystem::path path, std::string machine);

  std::optional<TunedChoice> find(const std::string& shape) const;

  /// Returns the file's entry for `shape` afterwards: `choice`, or another process's earlier one.
  TunedChoice add(const std::string& shape, const TunedChoice& choice);

 private:
  std::filesystem::path path_;
  std::string machine_;
};

}  // namespace tokamak::gpu
