// A flight page in its own file, so that other processes of the host can read it, even after its
// rank has died.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tokamak/comm/flight.h"
#include "tokamak/core/owned_fd.h"

namespace tokamak {

class FlightFile {
 public:
  /// Creates this rank's own file FOLDER/rank-N, which is locked while the process lives.
  static FlightFile create(const std::filesystem::path& folder, int rank);

  /// Opens another rank's file; throws SystemError where there is none.
  static FlightFile open(const std::filesystem::path& folder, int rank);

  FlightFile(FlightFile&& other) noexcept;
  FlightFile& operator=(FlightFile&& other) noexcept;
  ~FlightFile();

  FlightPage& page() const { return *page_; }

  /// Whether the process that created the file is alive. It is for files from open().
  bool is_owner_alive() const;

 private:
  FlightFile(const std::filesystem::path& path, int flags);

  OwnedFd fd_;
  FlightPage* page_ = nullptr;
};

/// The environment variable by which a launcher sets the folder of a job's flight files.
inline constexpr const char* kFlightFolderVariable = "TOKAMAK_FLIGHT_DIR";

/// Returns one line for each rank below `world_size` that has a file in `folder`.
std::vector<std::string> describe_flights(const std::filesystem::path& folder, int world_size);

}  // namespace tokamak
