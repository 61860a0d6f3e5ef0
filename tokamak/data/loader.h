// The stream of training windows. The tokens in row r of global batch t are a pure function of the
// options and the window's index, whatever the mesh or accumulation (docs/data.md).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// The loss leaves out positions with this label.
inline constexpr int32_t kIgnoreIndex = -100;

struct DataOptions {
  /// c4 (also c4_test, c4_validation), text, tokens, synthetic or shakespeare.
  std::string dataset;
  /// A file or folder, or a weighted mix "0.7 A 0.3 B"; unused by synthetic and shakespeare.
  std::string path = {};
  /// The field of JSON lines, or the column of Parquet files, that holds the text.
  std::string text_column = "text";
  int64_t seq_len = 0;
  /// Windows per optimizer step, over all ranks and microbatches.
  int64_t global_batch_size = 1;
  /// This rank's rows of each global batch; num_rows 0 stands for all rows.
  int64_t first_row = 0;
  int64_t num_rows = 0;
  /// Rows that one next() returns, a divisor of this rank's rows; 0 stands for all of them.
  int64_t rows_per_batch = 0;
  /// If it is absent, windows come in the order of the files.
  std::optional<uint64_t> shuffle_seed = std::nullopt;
  /// debug.seed, which keys synthetic tokens and the order of mixes.
  uint64_t seed = 0;
  /// Holds the token caches of text, each in its own folder.
  std::filesystem::path cache_folder = {};
  /// Only c4 and text need it; it must outlive the loader.
  const Tokenizer* tokenizer = nullptr;
  /// The model's vocabulary size, against which every id is checked.
  int64_t vocab_size = 0;
  /// If false, the stream makes one pass and then gives empty batches (validation).
  bool infinite = true;
  /// The windows of a pass, where it ends before the data does.
  std::optional<int64_t> most_windows = std::nullopt;
  /// Batches prepared ahead by the loader's thread.
  int64_t prefetch = 2;
};

/// Holds rows of seq_len tokens; labels[i] is the token after tokens[i], or kIgnoreIndex.
struct Batch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
  int64_t rows = 0;
  int64_t seq_len = 0;
  /// Rows that hold data; kIgnoreIndex labels fill the rest of a finite pass's last batch.
  int64_t valid_rows = 0;

  bool empty() const { return rows == 0; }
};

/// The position of a stream, whose next global batch begins at `window`.
struct LoaderState {
  struct Source {
    std::string name;
    uint64_t hash = 0;
    int64_t epoch = 0;

    bool operator==(const Source&) const = default;
  };

  int64_t window = 0;
  int64_t seq_len = 0;
  std::optional<uint64_t> shuffle_seed = std::nullopt;
  std::vector<Source> sources;

  bool operator==(const LoaderState&) const = default;

  /// Returns one line of JSON.
  std::string to_json() const;

  /// The inverse of to_json; throws Error that begins with `name`.
  static LoaderState from_json(std::string_view text, std::string_view name);
};

class BatchStream;

/// One rank's share of the stream, which a thread prepares ahead.
/// All functions must be called from one thread.
class Loader {
 public:
  /// Opens and checks all sources; throws Error on anything that a user can fix.
  explicit Loader(DataOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Begins to prepare batches now rather than at the first next().
  void start();

  /// Waits for `most` at most; returns whether next() would return or throw at once.
  bool wait(std::chrono::milliseconds most);

  /// Returns a number that grows while the tokens are being made for which next() waits.
  int64_t progress() const;

  /// Returns this rank's next rows_per_batch rows, or an empty batch at the end of a finite stream,
  /// on all ranks alike. Rethrows the prefetching thread's error.
  Batch next();

  /// REQUIRES: all batches of the current global batch were taken.
  LoaderState state() const;

  /// Continues at `state`; throws Error if it was saved over other sources, another seq_len or
  /// another shuffle seed. The global batch size and the ranks may differ.
  void restore(const LoaderState& state);

  /// Returns to the first window.
  void rewind();

  /// Returns lines for the user about what of the data is not read, or not as its name says.
  std::vector<std::string> remarks() const;

  /// Returns the seconds that next() has waited for data since construction.
  double wait_s() const { return wait_s_; }

 private:
  void go_to(int64_t window);
  void run(const std::stop_token& token);

  std::unique_ptr<BatchStream> stream_;
  int64_t first_window_ = 0;
  int64_t taken_ = 0;
  double wait_s_ = 0.0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  std::jthread thread_;
};

/// Returns why the data of `options` cannot be used here ("no such file or folder: ..."), or
/// nothing. It is cheap because it looks at names only.
std::optional<std::string> missing_data(const DataOptions& options);

}  // namespace tokamak
