#include "tokamak/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>

#include <fmt/ranges.h>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr std::string_view kFormat = "tokamak-checkpoint";
constexpr std::string_view kSealHead = "{\"seal\": \"";
constexpr size_t kSealDigits = 16;
// A reader holds a chunk in memory, and adds some of them to a place in the file.
constexpr int64_t kMostChunkBytes = int64_t{1} << 30;
constexpr int64_t kMostFileBytes = int64_t{1} << 60;

bool has_seal(std::string_view text) {
  return text.starts_with(kSealHead) && text.size() > kSealHead.size() + kSealDigits;
}

std::string seal_of(std::string text) {
  text.replace(kSealHead.size(), kSealDigits, kSealDigits, '0');
  return fmt::format("{:016x}", hash_of(std::as_bytes(std::span(text))));
}

std::string type_text(const std::map<std::string, TensorType>& tensors) {
  std::string text;
  for (const auto& [name, type] : tensors) {
    text += fmt::format("{}\n  {}: {{\"dtype\": \"{}\", \"shape\": {}}}", text.empty() ? "" : ",",
                        Json(name).dump(), name_of(type.dtype), Json(type.dims).dump());
  }
  return "{" + text + "}";
}

std::string piece_text(const ShardPiece& piece, const TensorType& type) {
  std::string text =
      fmt::format("{{\"tensor\": {}, \"offset\": {}", Json(piece.tensor).dump(), piece.offset);
  if (piece.slice.box != whole_box(type.dims)) {
    text += fmt::format(", \"box\": [{}, {}]", Json(piece.slice.box.begin).dump(),
                        Json(piece.slice.box.end).dump());
  }
  if (piece.slice != slice_of(piece.slice.box)) {
    text += fmt::format(", \"range\": [{}, {}]", piece.slice.begin, piece.slice.end);
  }
  return text + "}";
}

std::string shard_text(const ShardSummary& shard,
                       const std::map<std::string, TensorType>& tensors) {
  std::string hashes;
  for (const uint64_t hash : shard.hashes) {
    hashes += fmt::format("{}\"{:016x}\"", hashes.empty() ? "" : ", ", hash);
  }
  std::string pieces;
  for (const ShardPiece& piece : shard.pieces) {
    pieces += (pieces.empty() ? "\n   " : ",\n   ") + piece_text(piece, tensors.at(piece.tensor));
  }
  return fmt::format(
      "{{\"file\": {}, \"bytes\": {}, \"chunk_bytes\": {},\n   \"hashes\": [{}],\n   \"pieces\": "
      "[{}]}}",
      Json(shard.file).dump(), shard.file_bytes, shard.chunk_bytes, hashes, pieces);
}

int64_t count_of(const Json& json, const std::string& key, const std::string& what) {
  const auto value = json_member<int64_t>(json, key, what);
  TOK_REQUIRE(value >= 0, "{}: \"{}\" is {}, wanted no negative number", what, key, value);
  return value;
}

const Json& member(const Json& json, const char* key, Json::value_t type, const std::string& what) {
  TOK_REQUIRE(json.is_object() && json.contains(key) && json[key].type() == type,
              "{}: wanted {} \"{}\"", what, type == Json::value_t::array ? "an array" : "an object",
              key);
  return json[key];
}

Dims read_dims(const Json& json, const std::string& what) {
  TOK_REQUIRE(json.is_array() && json.size() <= 64, "{}: wanted an array of extents", what);
  Dims dims;
  for (const Json& extent : json) {
    TOK_REQUIRE(extent.is_number_unsigned() && extent.get<uint64_t>() <= INT64_MAX,
                "{}: wanted whole numbers from 0, got {}", what,
                printable(extent.dump().substr(0, 40)));
    dims.push_back(extent.get<int64_t>());
  }
  return dims;
}

std::map<std::string, TensorType> tensors_of(const Json& json, const std::string& what) {
  std::map<std::string, TensorType> tensors;
  for (const auto& [name, entry] : member(json, "tensors", Json::value_t::object, what).items()) {
    const std::string where = fmt::format("{}: tensor {}", what, shown(name));
    const auto dtype = dtype_from_name(json_member<std::string>(entry, "dtype", where), where);
    const TensorType type{
        .dtype = dtype,
        .dims = read_dims(member(entry, "shape", Json::value_t::array, where), where)};
    TOK_REQUIRE(checked_bytes(type.dtype, type.dims).has_value(), "{}: the size of {} overflows",
                where, to_string(type.dims));
    tensors.emplace(name, type);
  }
  return tensors;
}

ShardPiece piece_of(const Json& json, const std::map<std::string, TensorType>& tensors,
                    int64_t file_bytes, const std::string& what) {
  ShardPiece piece;
  piece.tensor = json_member<std::string>(json, "tensor", what);
  const std::string where = fmt::format("{}: piece of {}", what, shown(piece.tensor));
  const auto found = tensors.find(piece.tensor);
  TOK_REQUIRE(found != tensors.end(), "{}: there is no such tensor", where);
  const TensorType& type = found->second;
  piece.slice.box = whole_box(type.dims);
  if (json.contains("box")) {
    const Json& box = member(json, "box", Json::value_t::array, where);
    TOK_REQUIRE(box.size() == 2, "{}: wanted two corners in \"box\"", where);
    piece.slice.box = {.begin = read_dims(box[0], where), .end = read_dims(box[1], where)};
  }
  const std::string box_problem =
      slice_problem({.box = piece.slice.box, .begin = 0, .end = 0}, type.dims);
  TOK_REQUIRE(box_problem.empty(), "{}: {}", where, box_problem);
  piece.slice = slice_of(piece.slice.box);
  if (json.contains("range")) {
    const Dims range = read_dims(json["range"], where);
    TOK_REQUIRE(range.size() == 2, "{}: wanted two numbers in \"range\"", where);
    piece.slice.begin = range[0];
    piece.slice.end = range[1];
  }
  const std::string problem = slice_problem(piece.slice, type.dims);
  TOK_REQUIRE(problem.empty(), "{}: {}", where, problem);
  piece.offset = count_of(json, "offset", where);
  const int64_t bytes = piece.slice.numel() * size_of(type.dtype);
  TOK_REQUIRE(bytes <= file_bytes && piece.offset <= file_bytes - bytes,
              "{}: {} bytes at {} leave the {} bytes of the shard", where, bytes, piece.offset,
              file_bytes);
  return piece;
}

uint64_t parse_hash(const Json& json, const std::string& what) {
  uint64_t hash = 0;
  const std::string digits = json.is_string() ? json.get<std::string>() : "";
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  TOK_REQUIRE(
      digits.size() == kSealDigits && error == std::errc() && end == digits.data() + digits.size(),
      "{}: wanted hashes of 16 hexadecimal digits", what);
  return hash;
}

ShardSummary shard_of(const Json& json, const std::map<std::string, TensorType>& tensors,
                      const std::string& what) {
  ShardSummary shard;
  shard.file = json_member<std::string>(json, "file", what);
  const std::string where = fmt::format("{}: shard {}", what, shown(shard.file));
  TOK_REQUIRE(is_plain_file_name(shard.file), "{}: wanted the name of a file in the same folder",
              where);
  shard.file_bytes = count_of(json, "bytes", where);
  shard.chunk_bytes = count_of(json, "chunk_bytes", where);
  TOK_REQUIRE(shard.file_bytes <= kMostFileBytes, "{}: \"bytes\" is {}, wanted at most {}", where,
              shard.file_bytes, kMostFileBytes);
  TOK_REQUIRE(shard.chunk_bytes > 0 && shard.chunk_bytes <= kMostChunkBytes,
              "{}: \"chunk_bytes\" is {}, wanted 1 to {}", where, shard.chunk_bytes,
              kMostChunkBytes);
  const Json& hashes = member(json, "hashes", Json::value_t::array, where);
  const int64_t chunks =
      shard.file_bytes / shard.chunk_bytes + (shard.file_bytes % shard.chunk_bytes != 0 ? 1 : 0);
  TOK_REQUIRE(std::cmp_equal(hashes.size(), chunks), "{}: {} hashes, wanted {}", where,
              hashes.size(), chunks);
  for (const Json& hash : hashes) shard.hashes.push_back(parse_hash(hash, where));
  for (const Json& piece : member(json, "pieces", Json::value_t::array, where)) {
    shard.pieces.push_back(piece_of(piece, tensors, shard.file_bytes, where));
    const std::string& name = shard.pieces.back().tensor;
    shard.tensors.emplace(name, tensors.at(name));
  }
  return shard;
}

std::string uncovered(const Manifest& manifest) {
  std::map<std::string, std::vector<Slice>> slices;
  for (const ShardSummary& shard : manifest.shards) {
    for (const ShardPiece& piece : shard.pieces) slices[piece.tensor].push_back(piece.slice);
  }
  for (const auto& [name, type] : manifest.tensors) {
    const std::string problem = cover_problem(slices[name], type.dims);
    if (!problem.empty()) return fmt::format("tensor {}: {}", shown(name), problem);
  }
  return "";
}

CheckpointInfo info_of(const Json& json, const std::string& what) {
  CheckpointInfo info{.step = count_of(json, "step", what),
                      .resumable = json_member<bool>(json, "resumable", what),
                      .config_digest = json_member<std::string>(json, "config_digest", what),
                      .sections = {}};
  TOK_REQUIRE(info.step <= kMostSavedSteps, "{}: \"step\" is {}, wanted at most {}", what,
              info.step, kMostSavedSteps);
  for (const auto& [name, section] :
       member(json, "sections", Json::value_t::object, what).items()) {
    TOK_REQUIRE(section.is_string(), "{}: section {}: wanted a string", what, shown(name));
    info.sections.emplace(name, section.get<std::string>());
  }
  return info;
}

}  // namespace

std::string entry_name(const std::string& tensor, const Slice& slice, const Dims& dims) {
  std::string text = tensor;
  if (slice.box != whole_box(dims)) {
    text += fmt::format("[{}:{}]", fmt::join(slice.box.begin, ","), fmt::join(slice.box.end, ","));
  }
  if (slice != slice_of(slice.box)) text += fmt::format("{{{}:{}}}", slice.begin, slice.end);
  return text;
}

Manifest make_manifest(const CheckpointInfo& info, std::vector<ShardSummary> shards) {
  Manifest manifest{.info = info, .tensors = {}, .shards = std::move(shards)};
  for (const ShardSummary& shard : manifest.shards) {
    for (const auto& [name, type] : shard.tensors) {
      const auto it = manifest.tensors.emplace(name, type).first;
      TOK_CHECK(it->second == type, "{} is {} in one shard, {} in another", name,
                to_string(it->second), to_string(type));
    }
  }
  const std::string problem = uncovered(manifest);
  TOK_CHECK(problem.empty(), "checkpoint of step {}: {}", info.step, problem);
  return manifest;
}

std::string to_text(const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  std::string shards;
  for (const ShardSummary& shard : manifest.shards) {
    shards += (shards.empty() ? "\n  " : ",\n  ") + shard_text(shard, manifest.tensors);
  }
  return sealed(
      fmt::format("{}{:0>{}}\",\n \"format\": \"{}\",\n \"version\": {},\n \"step\": {},\n "
                  "\"resumable\": {},\n \"config_digest\": {},\n \"sections\": {},\n "
                  "\"tensors\": {},\n \"shards\": [{}]}}\n",
                  kSealHead, "", kSealDigits, kFormat, kManifestVersion, info.step, info.resumable,
                  Json(info.config_digest).dump(), Json(info.sections).dump(),
                  type_text(manifest.tensors), shards));
}

std::string sealed(std::string text) {
  if (has_seal(text)) text.replace(kSealHead.size(), kSealDigits, seal_of(text));
  return text;
}

Manifest parse_manifest(std::string_view text, std::string_view what) {
  TOK_REQUIRE(has_seal(text), "{}: not the manifest of a checkpoint, or cut short", what);
  TOK_REQUIRE(text.substr(kSealHead.size(), kSealDigits) == seal_of(std::string(text)),
              "{}: damaged: its seal does not match its text", what);
  const Json json = parse_json(text, what, {.max_depth = 16});
  const std::string where(what);
  TOK_REQUIRE(json_member<std::string>(json, "format", what) == kFormat,
              "{}: not the manifest of a checkpoint", what);
  const auto version = json_member<int64_t>(json, "version", what);
  TOK_REQUIRE(version == kManifestVersion, "{}: format version {}; this program reads version {}",
              what, version, kManifestVersion);
  Manifest manifest{.info = info_of(json, where), .tensors = tensors_of(json, where), .shards = {}};
  for (const Json& shard : member(json, "shards", Json::value_t::array, where)) {
    manifest.shards.push_back(shard_of(shard, manifest.tensors, where));
  }
  const std::string problem = uncovered(manifest);
  TOK_REQUIRE(problem.empty(), "{}: {}", what, problem);
  return manifest;
}

std::string to_text(const ShardSummary& summary) {
  if (summary.file.empty()) return "";
  return fmt::format("{{\"tensors\": {},\n \"shard\": {}}}\n", type_text(summary.tensors),
                     shard_text(summary, summary.tensors));
}

ShardSummary parse_shard_summary(std::string_view text, std::string_view what) {
  if (text.empty()) return {};
  const Json json = parse_json(text, what, {.max_depth = 16});
  const std::string where(what);
  return shard_of(member(json, "shard", Json::value_t::object, where), tensors_of(json, where),
                  where);
}

}  // namespace tokamak
