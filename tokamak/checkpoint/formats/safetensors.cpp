#include "tokamak/checkpoint/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/formats/safetensors_dtype.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// The limit that the reference implementation sets.
constexpr uint64_t kLargestHeader = 100'000'000;
constexpr int64_t kLengthBytes = 8;
constexpr size_t kMostDims = 64;

DType dtype_of(const Json& entry, const std::string& what) {
  const auto code = json_member<std::string>(entry, "dtype", what);
  for (const auto& [dtype, name] : kSafetensorsDTypes) {
    if (name == code) return dtype;
  }
  fail(
      "{}: element type {} is not supported; wanted F64, F32, F16, BF16, I64, I32, U32, U16, U8 "
      "or BOOL",
      what, shown(code));
}

int64_t non_negative(const Json& value, std::string_view key, const std::string& what) {
  const bool fits = value.is_number_unsigned() &&
                    value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  TOK_REQUIRE(fits, "{}: \"{}\": wanted integers from 0 to 2^63 - 1, got {}", what, key,
              shown(value.dump().substr(0, 40)));
  return value.get<int64_t>();
}

const Json& array_of(const Json& entry, const char* key, const std::string& what) {
  const auto it = entry.find(key);
  TOK_REQUIRE(it != entry.end() && it->is_array(), "{}: wanted an array \"{}\"", what, key);
  return *it;
}

Dims dims_of(const Json& entry, const std::string& what) {
  const Json& shape = array_of(entry, "shape", what);
  TOK_REQUIRE(shape.size() <= kMostDims, "{}: {} dimensions, wanted at most {}", what, shape.size(),
              kMostDims);
  Dims dims;
  for (const Json& extent : shape) dims.push_back(non_negative(extent, "shape", what));
  return dims;
}

SafetensorsEntry parse_entry(const std::string& name, const Json& json, int64_t data_begin,
                             int64_t file_bytes, std::string_view file) {
  const std::string what = fmt::format("{}: tensor {}", file, shown(name));
  TOK_REQUIRE(json.is_object(), "{}: wanted an object, got {}", what, json.type_name());
  SafetensorsEntry entry{.name = name,
                         .dtype = dtype_of(json, what),
                         .dims = dims_of(json, what),
                         .begin = 0,
                         .end = 0};
  const Json& offsets = array_of(json, "data_offsets", what);
  TOK_REQUIRE(offsets.size() == 2, "{}: wanted two data_offsets, got {}", what, offsets.size());
  const int64_t begin = non_negative(offsets[0], "data_offsets", what);
  const int64_t end = non_negative(offsets[1], "data_offsets", what);
  const int64_t data_bytes = file_bytes - data_begin;
  TOK_REQUIRE(begin <= end && end <= data_bytes,
              "{}: data_offsets [{}, {}] leave the {} bytes of data", what, begin, end, data_bytes);
  const auto bytes = checked_bytes(entry.dtype, entry.dims);
  TOK_REQUIRE(bytes.has_value(), "{}: the size of {} overflows", what, to_string(entry.dims));
  TOK_REQUIRE(*bytes == end - begin, "{}: {}{} takes {} bytes, data_offsets hold {}", what,
              name_of(entry.dtype), to_string(entry.dims), *bytes, end - begin);
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

SafetensorsMetadata parse_metadata(const Json& json, std::string_view file) {
  SafetensorsMetadata metadata;
  if (json.is_null()) return metadata;
  TOK_REQUIRE(json.is_object(), "{}: __metadata__: wanted an object, got {}", file,
              json.type_name());
  for (const auto& [key, value] : json.items()) {
    TOK_REQUIRE(value.is_string(), "{}: __metadata__: {}: wanted a string, got {}", file,
                shown(key), value.type_name());
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

void check_tiling(const SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes,
                  std::string_view file) {
  int64_t at = data_begin;
  for (const SafetensorsEntry& entry : header.entries) {
    TOK_REQUIRE(entry.begin == at, "{}: tensor {} {} the tensor before it (byte {}, wanted {})",
                file, shown(entry.name), entry.begin < at ? "overlaps" : "leaves a hole after",
                entry.begin, at);
    at = entry.end;
  }
  TOK_REQUIRE(at == file_bytes, "{}: {} bytes after the last tensor belong to none", file,
              file_bytes - at);
}

uint64_t header_length(std::span<const std::byte> bytes, int64_t file_bytes,
                       std::string_view file) {
  TOK_REQUIRE(file_bytes >= kLengthBytes && std::ssize(bytes) >= kLengthBytes,
              "{}: {} bytes are too few for a safetensors file", file, file_bytes);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  TOK_REQUIRE(length <= kLargestHeader,
              "{}: not a safetensors file: it declares a header of {} bytes, wanted at most {}",
              file, length, kLargestHeader);
  const auto present = std::min<int64_t>(file_bytes, std::ssize(bytes)) - kLengthBytes;
  TOK_REQUIRE(static_cast<int64_t>(length) <= present,
              "{}: truncated: wanted a header of {} bytes, got {}", file, length, present);
  return length;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_bytes,
                                           std::string_view name) {
  const uint64_t length = header_length(bytes, file_bytes, name);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  TOK_REQUIRE(text.starts_with('{'), "{}: not a safetensors file: its header is not a JSON object",
              name);
  const Json json = parse_json(text, name, {.max_depth = 8});
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  SafetensorsHeader header;
  for (const auto& [key, value] : json.items()) {
    if (key == "__metadata__") {
      header.metadata = parse_metadata(value, name);
    } else {
      header.entries.push_back(parse_entry(key, value, data_begin, file_bytes, name));
    }
  }
  std::ranges::stable_sort(header.entries, [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_tiling(header, data_begin, file_bytes, name);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const auto bytes = file_.bytes();
  SafetensorsHeader header = parse_safetensors_header(bytes, std::ssize(bytes), path.string());
  metadata_ = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) {
    const auto data = bytes.subspan(entry.begin, entry.end - entry.begin);
    index_.emplace(entry.name, tensors_.size());
    tensors_.push_back({.name = std::move(entry.name),
                        .dtype = entry.dtype,
                        .dims = std::move(entry.dims),
                        .data = data});
  }
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const TensorView* view = find(name);
  TOK_REQUIRE(view != nullptr, "{}: there is no tensor {}", path_.string(), shown(name));
  return *view;
}

}  // namespace tokamak
