#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <thread>

#include "tokamak/core/error.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/open_source.h"

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

void build_token_cache(const DataOptions& options, int threads,
                       const std::function<void(const CacheProgress&)>& progress) {
  if (const auto reason = missing_data(options)) throw Error("data: " + *reason);
  if (options.dataset == "tokens" || !needs_path(options.dataset)) return;
  TOK_REQUIRE(options.tokenizer != nullptr, "dataset \"{}\" wants a tokenizer", options.dataset);
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const WeightedPath& part : parse_mix(options.path)) {
    const auto source =
        open_token_cache(text_source(options.dataset, part.path), *options.tokenizer,
                         options.cache_folder, threads > 0 ? threads : cores);
    complete(*source, progress);
  }
}

}  // namespace tokamak
