// How a rank ended. The watcher of a rank tells the launcher: on the launcher's host by a file in
// the job's folder, from other hosts by a line on stderr, which the launcher does not pass on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tokamak::launch {

/// How a rank ended.
struct RankEnd {
  int exit_code = 0;  ///< 128 + signal for a death by signal
  /// The job was already being ended when this rank ended.
  bool was_told = false;
  int64_t at_ns = 0;  ///< on the clock of its host's processes; orders ends of one host
  int64_t step = -1;  ///< the last step that the rank had done; -1 = none
  /// The watcher's process in kBegan. In kEnded the rank's, where it is dying and not yet gone; 0
  /// where it is.
  int64_t process = 0;
  std::string host;
  std::string reason;     ///< why the watcher ended it, else empty
  std::string leave_out;  ///< hosts that its check of the cluster names, as "n2,n3"; else empty
};

/// A word of a watcher to the launcher.
struct RankNews {
  enum class Kind { kBegan, kAlive, kEnded };

  Kind kind = Kind::kBegan;
  int64_t rank = 0;
  RankEnd end;  ///< of kEnded; `end.host` holds for all kinds
};

/// Returns one line, whose end is a newline.
std::string to_line(const RankNews& news);

/// Returns the news in a line of stderr, or nothing where it is another line.
std::optional<RankNews> news_in(std::string_view line);

/// Writes the end of `rank` into the job's folder, whole or not at all. Nothing is said where the
/// folder is gone, because then nobody asks.
void write_rank_end(const std::filesystem::path& folder, int64_t rank, const RankEnd& end);

/// Returns what the watcher of `rank` has written there, if anything.
std::optional<RankEnd> read_rank_end(const std::filesystem::path& folder, int64_t rank);

}  // namespace tokamak::launch
