// The pure function from a batch's number to the batch, on which Loader is built.
#pragma once

#include <cstdint>
#include <stop_token>
#include <vector>

#include "tokamak/data/loader.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/windows.h"

namespace tokamak {

/// One thread at a time may call read(); any thread may call the rest.
class BatchStream {
 public:
  /// Opens and checks everything; fills in the options' zeros.
  explicit BatchStream(DataOptions options);

  /// Reads this rank's batch `batch`, counted from the global batch that begins at `first_window`.
  Batch read(int64_t first_window, int64_t batch, const std::stop_token& stop);

  int64_t batches_per_step() const { return options_.num_rows / options_.rows_per_batch; }

  const DataOptions& options() const { return options_; }

  /// Returns the state of a stream whose next global batch begins at `window`.
  LoaderState state_at(int64_t window) const;

  /// Returns a number that grows while tokens of the sources are made.
  int64_t progress() const;

  /// Returns the remarks of all sources.
  std::vector<std::string> remarks() const;

  /// Throws Error unless `state` belongs to these sources and options.
  void check(const LoaderState& state) const;

 private:
  bool read_row(int64_t window, std::span<int32_t> tokens, std::span<int32_t> labels,
                const std::stop_token& stop);
  bool has_window(int64_t window, const std::stop_token& stop);
  int64_t end_of_mix(const std::stop_token& stop);

  DataOptions options_;
  std::vector<Windows> sources_;
  Mix mix_;
  std::vector<int32_t> row_;
  std::optional<int64_t> end_;
};

}  // namespace tokamak
