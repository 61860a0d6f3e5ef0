// manifest.json of a checkpoint (docs/formats.md) says what the tensors are and which bytes of
// which shard hold which part of them. Its first member seals the text, so any flipped bit shows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/checkpoint/slice.h"
#include "tokamak/core/tensor_type.h"

namespace tokamak {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr int kManifestVersion = 1;

/// Upper bounds of the numbers in a manifest: no product of them overflows.
inline constexpr int64_t kMostSavedSteps = int64_t{1} << 40;
inline constexpr int64_t kMostSavedTokens = int64_t{1} << 60;

/// A tensor's elements and the byte of the shard where they begin.
struct ShardPiece {
  std::string tensor;
  Slice slice;
  int64_t offset = 0;
};

/// Returns the name of a piece in its shard's header: "w" for a whole tensor, "w[0,4:8,8]" for a
/// box, "w[0,4:8,8]{16:24}" for a range of it.
std::string entry_name(const std::string& tensor, const Slice& slice, const Dims& dims);

/// The files that one rank wrote, sent as text to the rank that commits.
struct ShardSummary {
  std::string file;
  int64_t file_bytes = 0;
  int64_t chunk_bytes = 0;
  std::vector<uint64_t> hashes;
  /// Global types of the tensors of which the shard holds pieces.
  std::map<std::string, TensorType> tensors;
  std::vector<ShardPiece> pieces;
};

/// The part of a checkpoint besides its tensors.
struct CheckpointInfo {
  int64_t step = 0;
  /// Whether it holds all that a run needs to go on, not only the model.
  bool resumable = true;
  /// Digest of the resolved configuration that trained it.
  std::string config_digest;
  /// Small opaque texts (UTF-8) by name: rng, loader, train_state, tuned ids.
  std::map<std::string, std::string> sections;
};

struct Manifest {
  CheckpointInfo info;
  std::map<std::string, TensorType> tensors;
  std::vector<ShardSummary> shards;
};

/// Joins what the ranks wrote. Throws Bug unless every tensor is covered exactly once and all ranks
/// agree on its type.
Manifest make_manifest(const CheckpointInfo& info, std::vector<ShardSummary> shards);

std::string to_text(const Manifest& manifest);

/// Throws Error naming `what` unless the seal holds and every number is consistent.
Manifest parse_manifest(std::string_view text, std::string_view what);

/// Writes the right seal into a text whose seal member has any 16 digits, for fuzzing.
std::string sealed(std::string text);

/// Returns the text that carries one rank's summary to another, empty for one without a file.
std::string to_text(const ShardSummary& summary);
ShardSummary parse_shard_summary(std::string_view text, std::string_view what);

}  // namespace tokamak
