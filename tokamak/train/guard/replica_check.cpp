#include "tokamak/train/guard/replica_check.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr int64_t kShareBytes = int64_t{64} << 20;

void put(std::string& text, const void* value, size_t size) {
  text.append(static_cast<const char*>(value), size);
}

template <class T>
T get(std::string_view text, size_t index) {
  T value{};
  TOK_CHECK((index + 1) * sizeof(T) <= text.size(), "{} bytes", text.size());
  std::memcpy(&value, text.data() + index * sizeof(T), sizeof value);
  return value;
}

uint64_t key_of(const TensorPiece& piece, int64_t first, int64_t count) {
  const std::string name =
      fmt::format("{} {} {} {} {}", piece.tensor, fmt::join(piece.box_begin, ","),
                  fmt::join(piece.box_end, ","), piece.begin + first, count);
  return hash_of(std::as_bytes(std::span(name)));
}

}  // namespace

ReplicaCheck::ReplicaCheck(World& world, const StateAccess& access,
                           std::span<const TensorPiece> pieces)
    : world_(world) {
  if (world.size() == 1) return;
  for (const StateKind kind : {StateKind::kParameter, StateKind::kMoment}) {
    for (PieceSource& source : read_pieces(access, pieces, kind, false))
      sources_.push_back(std::move(source));
  }
  std::string mine;  // pairs of a part's key and its bytes
  for (size_t p = 0; p < sources_.size(); ++p) {
    const TensorPiece& piece = sources_[p].piece;
    const int64_t width = size_of(piece.type.dtype);
    const int64_t most = kShareBytes / width;
    for (int64_t first = 0; first < piece.numel(); first += most) {
      const int64_t count = std::min(most, piece.numel() - first);
      const uint64_t key = key_of(piece, first, count);
      held_[key] = {.piece = p, .first = first, .count = count};
      const auto bytes = static_cast<uint64_t>(count * width);
      put(mine, &key, sizeof key);
      put(mine, &bytes, sizeof bytes);
    }
  }
  std::map<uint64_t, Part> parts;
  const std::vector<std::string> all = world.all_gather_text(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t i = 0; i < all[rank].size() / sizeof(uint64_t); i += 2) {
      const auto key = get<uint64_t>(all[rank], i);
      Part& part = parts[key];
      part.key = key;
      part.bytes = static_cast<int64_t>(get<uint64_t>(all[rank], i + 1));
      part.ranks.push_back(static_cast<int>(rank));
    }
  }
  int64_t room = 0;
  for (const auto& [key, part] : parts) {
    if (part.ranks.size() < 2) continue;
    if (part.bytes > room) {
      shares_.emplace_back();
      room = kShareBytes;
    }
    room -= part.bytes;
    shares_.back().push_back(part);
  }
}

uint64_t ReplicaCheck::hash_of_part(const Held& held) const {
  const TensorSource& elements = sources_[held.piece].elements;
  std::vector<std::byte> bytes(static_cast<size_t>(held.count * size_of(elements.dtype)));
  elements.read(held.first, bytes);
  return hash_of(bytes);
}

std::string ReplicaCheck::check() {
  if (shares_.empty()) return "";
  const std::vector<Part>& share = shares_[next_];
  next_ = (next_ + 1) % shares_.size();
  std::string mine;  // one hash for each part, 0 where this rank has none of it
  for (const Part& part : share) {
    const auto held = held_.find(part.key);
    const uint64_t hash = held == held_.end() ? 0 : hash_of_part(held->second);
    put(mine, &hash, sizeof hash);
  }
  const std::vector<std::string> hashes = world_.all_gather_text(mine);
  for (size_t i = 0; i < share.size(); ++i) {
    std::string line = report(share[i], hashes, i);
    if (!line.empty()) return line;
  }
  return "";
}

std::string ReplicaCheck::report(const Part& part, const std::vector<std::string>& hashes,
                                 size_t index) const {
  std::map<uint64_t, std::vector<int>> by_hash;
  for (const int rank : part.ranks)
    by_hash[get<uint64_t>(hashes[static_cast<size_t>(rank)], index)].push_back(rank);
  if (by_hash.size() == 1) return "";
  const auto most = std::ranges::max_element(
      by_hash, [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  std::vector<int> others;
  for (const auto& [hash, ranks] : by_hash) {
    if (hash != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  // A rank that has none of the part learns its name from the first that has it.
  const auto held = held_.find(part.key);
  const std::string name = held == held_.end() ? "" : sources_[held->second.piece].piece.tensor;
  const std::vector<std::string> names = world_.all_gather_text(name);
  const bool is_clear = most->second.size() > others.size();
  std::ranges::sort(others);
  return is_clear
             ? fmt::format("replicas differ: {} of rank {} is not that of ranks {}",
                           names[static_cast<size_t>(part.ranks[0])], fmt::join(others, ", "),
                           fmt::join(most->second, ", "))
             : fmt::format("replicas differ: {} is not the same on ranks {}",
                           names[static_cast<size_t>(part.ranks[0])], fmt::join(part.ranks, ", "));
}

}  // namespace tokamak
