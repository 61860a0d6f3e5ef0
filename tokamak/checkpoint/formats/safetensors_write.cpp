#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/formats/safetensors_dtype.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

constexpr size_t kAlignment = 8;

size_t place_of(DType dtype) {
  for (size_t i = 0; i < kSafetensorsDTypes.size(); ++i) {
    if (kSafetensorsDTypes[i].first == dtype) return i;
  }
  TOK_CHECK(false, "safetensors has no {}", name_of(dtype));
}

std::vector<size_t> data_order(std::span<const TensorSource> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return std::pair(place_of(tensors[a].dtype), std::string_view(tensors[a].name)) <
           std::pair(place_of(tensors[b].dtype), std::string_view(tensors[b].name));
  });
  return order;
}

void check_names(std::span<const TensorSource> tensors) {
  std::set<std::string_view> names;
  for (const TensorSource& tensor : tensors) {
    TOK_REQUIRE(tensor.name != "__metadata__", "a tensor may not be named __metadata__");
    TOK_REQUIRE(names.insert(tensor.name).second, "tensor {} is given twice", shown(tensor.name));
  }
}

}  // namespace

SafetensorsLayout lay_out_safetensors(std::span<const TensorSource> tensors,
                                      const SafetensorsMetadata& metadata) {
  check_names(tensors);
  SafetensorsLayout layout;
  layout.order = data_order(tensors);
  layout.offsets.resize(tensors.size());
  std::string text = metadata.empty() ? "{" : "{\"__metadata__\":" + Json(metadata).dump();
  int64_t at = 0;
  for (const size_t i : layout.order) {
    const TensorSource& tensor = tensors[i];
    const int64_t end = at + tensor.type().bytes();
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "", Json(tensor.name).dump(),
                        kSafetensorsDTypes[place_of(tensor.dtype)].second, Json(tensor.dims).dump(),
                        at, end);
    layout.offsets[i] = at;
    at = end;
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  layout.head.resize(sizeof length);
  std::memcpy(layout.head.data(), &length, sizeof length);
  layout.head += text;
  for (int64_t& offset : layout.offsets) offset += std::ssize(layout.head);
  layout.file_bytes = std::ssize(layout.head) + at;
  return layout;
}

void stream_safetensors(const SafetensorsLayout& layout, std::span<const TensorSource> tensors,
                        const std::function<void(std::span<const std::byte>)>& sink) {
  sink(std::as_bytes(std::span(layout.head)));
  for (const size_t i : layout.order) stream(tensors[i], sink);
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                       const SafetensorsMetadata& metadata) {
  const SafetensorsLayout layout = lay_out_safetensors(tensors, metadata);
  std::filesystem::path aside = path;
  aside += ".tmp";
  try {
    FileWriter file(aside);
    file.reserve(layout.file_bytes);
    stream_safetensors(layout, tensors,
                       [&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.sync_and_close();
    rename_durably(aside, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(aside, ignored);
    throw;
  }
}

}  // namespace tokamak
