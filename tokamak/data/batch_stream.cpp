#include "tokamak/data/batch_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/data/open_source.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {
namespace {

DataOptions completed(DataOptions options) {
  if (const auto reason = missing_data(options)) throw Error("data: " + *reason);
  TOK_CHECK(options.seq_len > 0 && options.vocab_size > 0 && options.global_batch_size > 0);
  if (options.num_rows == 0) options.num_rows = options.global_batch_size - options.first_row;
  if (options.rows_per_batch == 0) options.rows_per_batch = options.num_rows;
  TOK_CHECK(options.first_row >= 0 && options.num_rows > 0 && options.rows_per_batch > 0);
  TOK_CHECK(options.first_row + options.num_rows <= options.global_batch_size);
  TOK_CHECK(options.num_rows % options.rows_per_batch == 0);
  TOK_CHECK(!options.infinite || !options.most_windows);
  return options;
}

std::vector<WeightedPath> paths_of(const DataOptions& options) {
  if (needs_path(options.dataset)) return parse_mix(options.path);
  return {{.path = options.dataset, .weight = 1}};
}

Mix mix_of(const DataOptions& options) {
  std::vector<int64_t> weights;
  for (const WeightedPath& part : paths_of(options)) weights.push_back(part.weight);
  return Mix(std::move(weights), options.seed);
}

std::string listed(const std::vector<LoaderState::Source>& sources) {
  std::string text;
  for (const auto& source : sources) {
    text += fmt::format("{}{} ({:016x})", text.empty() ? "" : ", ", printable(source.name),
                        source.hash);
  }
  return text;
}

std::string shown(const std::optional<uint64_t>& seed) {
  return seed ? std::to_string(*seed) : "none";
}

constexpr std::string_view kRemedy =
    "to begin the data anew, add \"dataloader\" to checkpoint.exclude_from_loading";

}  // namespace

BatchStream::BatchStream(DataOptions options)
    : options_(completed(std::move(options))), mix_(mix_of(options_)) {
  for (const WeightedPath& part : paths_of(options_)) {
    // The windows of a stored source are not shuffled, which would need all of them: its files are.
    const auto seed = is_stored(part.path) ? std::nullopt : options_.shuffle_seed;
    sources_.emplace_back(open_source(options_, part.path),
                          WindowOptions{.window_size = options_.seq_len + 1,
                                        .vocab_size = options_.vocab_size,
                                        .shuffle_seed = seed,
                                        .infinite = options_.infinite});
  }
  row_.resize(options_.seq_len + 1);
}

Batch BatchStream::read(int64_t first_window, int64_t batch, const std::stop_token& stop) {
  const int64_t step_window =
      first_window + batch / batches_per_step() * options_.global_batch_size;
  if (!options_.infinite && !has_window(step_window, stop)) return {};
  const int64_t row = options_.first_row + batch % batches_per_step() * options_.rows_per_batch;
  const int64_t S = options_.seq_len;
  const auto numel = static_cast<size_t>(options_.rows_per_batch * S);
  Batch out{.tokens = std::vector<int32_t>(numel, 0),
            .labels = std::vector<int32_t>(numel, kIgnoreIndex),
            .rows = options_.rows_per_batch,
            .seq_len = S,
            .valid_rows = 0};
  for (int64_t r = 0; r < out.rows; ++r) {
    const auto at = static_cast<size_t>(r * S);
    const auto count = static_cast<size_t>(S);
    if (!read_row(step_window + row + r, std::span(out.tokens).subspan(at, count),
                  std::span(out.labels).subspan(at, count), stop)) {
      break;
    }
    ++out.valid_rows;
  }
  return out;
}

int64_t BatchStream::end_of_mix(const std::stop_token& stop) {
  int64_t end = std::numeric_limits<int64_t>::max();
  for (size_t k = 0; k < sources_.size(); ++k) {
    end = std::min(end, mix_.window_of(k, sources_[k].wait_for_count(stop)));
  }
  return end;
}

bool BatchStream::has_window(int64_t window, const std::stop_token& stop) {
  if (options_.most_windows && window >= *options_.most_windows) return false;
  if (!options_.infinite && sources_.size() > 1) {
    if (!end_) end_ = end_of_mix(stop);
    if (window >= *end_) return false;
  }
  const Mix::Place place = mix_.at(window);
  return sources_[place.source].read(place.index, row_, stop);
}

bool BatchStream::read_row(int64_t window, std::span<int32_t> tokens, std::span<int32_t> labels,
                           const std::stop_token& stop) {
  if (!has_window(window, stop)) return false;
  std::copy(row_.begin(), row_.end() - 1, tokens.begin());
  std::copy(row_.begin() + 1, row_.end(), labels.begin());
  return true;
}

LoaderState BatchStream::state_at(int64_t window) const {
  LoaderState state{.window = window,
                    .seq_len = options_.seq_len,
                    .shuffle_seed = options_.shuffle_seed,
                    .sources = {}};
  for (size_t k = 0; k < sources_.size(); ++k) {
    state.sources.push_back({.name = sources_[k].source().name(),
                             .hash = sources_[k].source().hash(),
                             .epoch = sources_[k].epoch_of(mix_.served_before(k, window))});
  }
  return state;
}

int64_t BatchStream::progress() const {
  int64_t sum = 0;
  for (const Windows& windows : sources_) sum += windows.progress();
  return sum;
}

std::vector<std::string> BatchStream::remarks() const {
  std::vector<std::string> lines;
  for (const Windows& windows : sources_) {
    for (std::string& line : windows.source().remarks()) lines.push_back(std::move(line));
  }
  return lines;
}

void BatchStream::check(const LoaderState& state) const {
  const std::vector<LoaderState::Source> own = state_at(0).sources;
  const bool same = std::equal(own.begin(), own.end(), state.sources.begin(), state.sources.end(),
                               [](const auto& a, const auto& b) { return a.hash == b.hash; });
  TOK_REQUIRE(same, "data: the checkpoint was saved over {}, these are {}; {}",
              listed(state.sources), listed(own), kRemedy);
  TOK_REQUIRE(state.seq_len == options_.seq_len,
              "data: the checkpoint's position counts windows of seq_len {}, this run's is {}; {}",
              state.seq_len, options_.seq_len, kRemedy);
  TOK_REQUIRE(state.shuffle_seed == options_.shuffle_seed,
              "data: the checkpoint was saved with training.shuffle_seed {}, this run's is {}; {}",
              shown(state.shuffle_seed), shown(options_.shuffle_seed), kRemedy);
}

}  // namespace tokamak
