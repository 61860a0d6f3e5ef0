#include "tokamak/checkpoint/shard_contents.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tokamak {

ShardContents::ShardContents(std::vector<TensorSource> tensors)
    : tensors_(std::move(tensors)),
      layout_(lay_out_safetensors(tensors_, {{"format", "tokamak"}})) {
  for (const size_t i : layout_.order) {
    if (tensors_[i].type().bytes() > 0) begins_.emplace_back(layout_.offsets[i], i);
  }
}

void ShardContents::read(int64_t first, std::span<std::byte> out) const {
  const int64_t end = first + std::ssize(out);
  const int64_t head_bytes = std::ssize(layout_.head);
  if (first < head_bytes) {
    const int64_t count = std::min(end, head_bytes) - first;
    std::memcpy(out.data(), layout_.head.data() + first, static_cast<size_t>(count));
  }
  // The tensor that holds `first` is the last one that does not begin after it.
  auto at = std::upper_bound(begins_.begin(), begins_.end(), first,
                             [](int64_t byte, const auto& begin) { return byte < begin.first; });
  if (at != begins_.begin()) --at;
  for (; at != begins_.end() && at->first < end; ++at) {
    const TensorSource& tensor = tensors_[at->second];
    const int64_t from = std::max(first, at->first);
    const int64_t to = std::min(end, at->first + tensor.type().bytes());
    if (from >= to) continue;
    tensor.read((from - at->first) / size_of(tensor.dtype), out.subspan(from - first, to - from));
  }
}

}  // namespace tokamak
