// A flight page in a file of its own, so that other processes of the host can read it, also after
// the death of its rank.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tokamak/comm/flight.h"

namespace tokamak {

class FlightFile {
 public:
  /// This rank's own file FOLDER/rank-N, locked while the process lives.
  static FlightFile create(const std::filesystem::path& folder, int rank);

  /// Another rank's file; throws SystemError where there is none.
  static FlightFile open(const std::filesystem::path& folder, int rank);

  FlightFile(FlightFile&& other) noexcept;
  FlightFile& operator=(FlightFile&& other) noexcept;
  FlightFile(const FlightFile&) = delete;
  FlightFile& operator=(const FlightFile&) = delete;
  ~FlightFile();

  FlightPage& page() const { return *page_; }

  /// Whether the process that created the file is alive. For files that were opened.
  bool is_owner_alive() const;

 private:
  FlightFile(const std::filesystem::path& path, int flags);

  int fd_ = -1;
  FlightPage* page_ = nullptr;
};

/// Where the ranks of a job keep their files if the launcher says so.
inline constexpr const char* kFlightFolderVariable = "TOKAMAK_FLIGHT_DIR";

/// One line for each rank below `world_size` that has a file in `folder`.
std::vector<std::string> describe_flights(const std::filesystem::path& folder, int world_size);

}  // namespace tokamak
