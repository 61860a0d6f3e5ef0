#include "tokamak/data/windows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/data/shuffle.h"

namespace tokamak {

Windows::Windows(std::unique_ptr<TokenSource> source, WindowOptions options)
    : source_(std::move(source)), options_(options) {
  const std::optional<int64_t> size = source_->size();
  if (size) check_size(*size);
  TOK_REQUIRE(
      size || !options_.shuffle_seed,
      "{}: shuffling wants the complete token cache, which `tokamak tokenizer cache` builds",
      source_->name());
  check_ids(0, source_->front(options_.window_size));
}

bool Windows::read(int64_t window, std::span<int32_t> out, const std::stop_token& stop) {
  TOK_CHECK(static_cast<int64_t>(out.size()) == options_.window_size);
  const std::optional<int64_t> first = first_token(window, stop);
  if (!first) return false;
  const int64_t size = source_->size().value_or(*first + options_.window_size);
  const auto head = static_cast<size_t>(std::min(options_.window_size, size - *first));
  source_->read(*first, out.first(head));
  check_ids(*first, out.first(head));
  if (head < out.size()) {
    source_->read(0, out.subspan(head));
    check_ids(0, out.subspan(head));
  }
  return true;
}

std::optional<int64_t> Windows::first_token(int64_t window, const std::stop_token& stop) {
  const int64_t width = options_.window_size;
  const int64_t size = source_->wait_for((window + 1) * width, stop);
  if (size >= (window + 1) * width && !options_.shuffle_seed) return window * width;
  check_size(size);
  const int64_t num_windows = size / width;
  if (!options_.infinite && window >= num_windows) return std::nullopt;
  if (options_.shuffle_seed) {
    const auto epoch = static_cast<uint64_t>(window / num_windows);
    return width * shuffled(*options_.shuffle_seed, epoch, num_windows, window % num_windows);
  }
  return source_->carries_tail() ? window * width % size : window % num_windows * width;
}

int64_t Windows::wait_for_count(const std::stop_token& stop) {
  const int64_t size = source_->wait_for(std::numeric_limits<int64_t>::max() / 2, stop);
  check_size(size);
  return size / options_.window_size;
}

int64_t Windows::epoch_of(int64_t window) const {
  const std::optional<int64_t> size = source_->size();
  if (!size) return 0;
  const bool carries = source_->carries_tail() && !options_.shuffle_seed;
  return carries ? window * options_.window_size / *size : window / (*size / options_.window_size);
}

void Windows::check_size(int64_t size) const {
  TOK_REQUIRE(size >= options_.window_size,
              "{}: wanted at least one window of {} tokens (seq_len + 1), got {} tokens in all",
              source_->name(), options_.window_size, size);
}

void Windows::check_ids(int64_t first, std::span<const int32_t> ids) const {
  const auto limit = static_cast<uint32_t>(options_.vocab_size);
  const auto bad =
      std::ranges::find_if(ids, [&](int32_t id) { return static_cast<uint32_t>(id) >= limit; });
  if (bad == ids.end()) return;
  fail(
      "{} is outside the model's vocabulary of {}: wanted the model's own tokenizer, or "
      "--model.vocab above that id",
      source_->describe(first + (bad - ids.begin()), *bad), options_.vocab_size);
}

}  // namespace tokamak
