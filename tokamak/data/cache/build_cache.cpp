#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>

#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/open_source.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {
namespace {

constexpr auto kReport = std::chrono::milliseconds(100);

void complete(TokenSource& source, const std::function<void(const CacheProgress&)>& progress) {
  std::stop_source stop;
  auto done = std::async(std::launch::async, [&] {
    return source.wait_for(std::numeric_limits<int64_t>::max() / 2, stop.get_token());
  });
  try {
    while (done.wait_for(kReport) != std::future_status::ready) {
      progress({.source = source.name(),
                .tokens = source.tokens_so_far(),
                .progress = source.progress(),
                .share = source.share_so_far(),
                .complete = false});
    }
  } catch (...) {
    stop.request_stop();
    throw;
  }
  progress({.source = source.name(), .tokens = done.get(), .share = 1.0, .complete = true});
}

}  // namespace

std::filesystem::path token_cache_folder(const std::filesystem::path& otherwise) {
  const std::filesystem::path shared = cache_folder() / "tokens";
  std::error_code code;
  std::filesystem::create_directories(shared, code);
  return !code && ::access(shared.c_str(), W_OK | X_OK) == 0 ? shared : otherwise;
}

std::vector<std::string> build_token_cache(
    const DataOptions& options, int threads,
    const std::function<void(const CacheProgress&)>& progress, bool helps, bool stored_too) {
  if (const auto reason = missing_data(options)) throw Error("data: " + *reason);
  if (options.dataset == "tokens" || !needs_path(options.dataset)) return {};
  TOK_REQUIRE(options.tokenizer != nullptr, "dataset \"{}\" wants a tokenizer", options.dataset);
  std::vector<std::string> remarks;
  for (const WeightedPath& part : parse_mix(options.path)) {
    if (!stored_too && is_stored(part.path)) continue;
    const auto source = open_token_cache(
        text_source(options.dataset, part.path, options.text_column, options.shuffle_seed),
        *options.tokenizer, options.cache_folder, threads > 0 ? threads : usable_cores(), helps);
    complete(*source, progress);
    for (std::string& line : source->remarks()) remarks.push_back(std::move(line));
  }
  return remarks;
}

void check_epochs(const DataOptions& options) {
  TOK_REQUIRE(options.dataset != "synthetic",
              "training.epochs: training.dataset \"synthetic\" has no end; give training.steps or "
              "training.tokens");
  TOK_REQUIRE(!needs_path(options.dataset) || parse_mix(options.path).size() == 1,
              "training.epochs: a mix of datasets has no epoch; give training.steps or "
              "training.tokens");
}

int64_t count_windows(const DataOptions& options, int threads,
                      const std::function<void(const CacheProgress&)>& progress) {
  check_epochs(options);
  build_token_cache(options, threads, progress);
  const auto source = open_source(options, options.path);
  const int64_t tokens = source->size().value_or(0);
  const int64_t windows = tokens / (options.seq_len + 1);
  TOK_REQUIRE(windows > 0, "training.epochs: {} has {} tokens, less than one window of {}",
              source->name(), tokens, options.seq_len + 1);
  return windows;
}

}  // namespace tokamak
