#include "tokamak/exec/result_ring.h"

#include "tokamak/core/error.h"

namespace tokamak {

ResultRing::ResultRing(const StateAccess& access, std::vector<StateId> scalars, size_t capacity)
    : access_(access), scalars_(std::move(scalars)), ring_(capacity) {
  const size_t width = scalars_.size();
  DeviceStreams* streams = access_.streams();
  if (streams == nullptr) host_.resize(capacity * width);
  for (size_t i = 0; i < capacity; ++i) {
    if (streams == nullptr) {
      ring_[i].values = std::span(host_).subspan(i * width, width);
    } else {
      auto* pinned = static_cast<double*>(streams->make_pinned(width * sizeof(double)));
      ring_[i] = {.values = {pinned, width}, .copied = streams->make_event(true)};
    }
  }
  if (streams == nullptr) return;
  origin_ = streams->make_event(true);
  streams->record(origin_, streams->stream(0));
  streams->synchronize(origin_);
  origin_at_ = std::chrono::steady_clock::now();
}

void ResultRing::push() {
  TOK_CHECK(size_ < ring_.size(), "{} results are waiting", size_);
  const Entry& entry = ring_[(first_ + size_++) % ring_.size()];
  DeviceStreams* streams = access_.streams();
  for (size_t i = 0; i < scalars_.size(); ++i) {
    if (streams == nullptr) {
      entry.values[i] = access_.read<double>(scalars_[i])[0];
    } else {
      streams->copy_to_pinned(&entry.values[i], access_.address(scalars_[i]), sizeof(double));
    }
  }
  if (streams != nullptr) streams->record(entry.copied, streams->stream(0));
}

StepScalars ResultRing::pop() {
  TOK_CHECK(size_ > 0);
  const Entry& entry = ring_[first_];
  StepScalars result{.at = std::chrono::steady_clock::now()};
  if (DeviceStreams* streams = access_.streams()) {
    streams->synchronize(entry.copied);
    const std::chrono::duration<double> since(streams->seconds_between(origin_, entry.copied));
    result.at = origin_at_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
  }
  result.values.assign(entry.values.begin(), entry.values.end());
  first_ = (first_ + 1) % ring_.size();
  --size_;
  return result;
}

}  // namespace tokamak
