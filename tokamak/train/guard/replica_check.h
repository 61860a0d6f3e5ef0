// Compares what several ranks hold alike (replicated parameters and moments), a share at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"
#include "tokamak/parallel/tensor_piece.h"
#include "tokamak/train/state/pieces.h"

namespace tokamak {

class ReplicaCheck {
 public:
  /// Finds out which elements others hold too. Collective.
  ReplicaCheck(World& world, const StateAccess& access, std::span<const TensorPiece> pieces);

  /// Hashes the next share of what is replicated, at most 64 MiB of this rank, and compares it with
  /// the other ranks'. Returns a line that names the ranks that differ from most and the first
  /// tensor, or "". Collective; all ranks return the same.
  std::string check();

  /// Returns the number of calls of check() that compare everything once; 0 if nothing is
  /// replicated.
  int64_t num_shares() const { return static_cast<int64_t>(shares_.size()); }

 private:
  // A range of elements that some ranks hold alike, by the hash of its name.
  struct Part {
    uint64_t key = 0;
    int64_t bytes = 0;
    std::vector<int> ranks;
  };

  // Where this rank has a part.
  struct Held {
    size_t piece = 0;
    int64_t first = 0;
    int64_t count = 0;
  };

  uint64_t hash_of_part(const Held& held) const;
  std::string report(const Part& part, const std::vector<std::string>& hashes, size_t index) const;

  World& world_;
  std::vector<PieceSource> sources_;
  std::map<uint64_t, Held> held_;
  std::vector<std::vector<Part>> shares_;
  size_t next_ = 0;
};

}  // namespace tokamak
