#include "tokamak/checkpoint/shard_check.h"

#include <unordered_map>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/core/error.h"

namespace tokamak {

void check_pieces(const ShardSummary& shard, std::span<const std::byte> bytes,
                  const std::map<std::string, TensorType>& tensors, const std::string& what) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, std::ssize(bytes), what);
  std::unordered_map<std::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.entries) entries.emplace(entry.name, &entry);
  for (const ShardPiece& piece : shard.pieces) {
    const TensorType& type = tensors.at(piece.tensor);
    const std::string name = entry_name(piece.tensor, piece.slice, type.dims);
    const auto found = entries.find(name);
    TOK_REQUIRE(found != entries.end(), "{}: the manifest has a piece {}, the shard has none", what,
                shown(name));
    const SafetensorsEntry& entry = *found->second;
    const int64_t end = piece.offset + piece.slice.numel() * size_of(type.dtype);
    TOK_REQUIRE(entry.dtype == type.dtype && entry.begin == piece.offset && entry.end == end,
                "{}: piece {} is {} at bytes {} to {}, the manifest says {} at {} to {}", what,
                shown(name), name_of(entry.dtype), entry.begin, entry.end, name_of(type.dtype),
                piece.offset, end);
  }
}

}  // namespace tokamak
