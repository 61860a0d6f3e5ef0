// The device mesh, pp x dp_replicate x dp_shard x cp x tp, outermost first (tp neighbours share a
// node), and the groups of ranks that communicate.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/enum_array.h"

namespace tokamak {

enum class MeshAxis : uint8_t { kPp, kDpReplicate, kDpShard, kCp, kTp };
inline constexpr size_t kNumMeshAxes = 5;

/// Returns "pp", "dp_replicate", "dp_shard", "cp" or "tp".
std::string_view name_of(MeshAxis axis);

/// A set of mesh axes. Ranks that differ only in these axes form one group.
struct AxisSet {
  uint8_t bits = 0;

  constexpr AxisSet() = default;

  constexpr AxisSet(std::initializer_list<MeshAxis> axes) {
    for (const MeshAxis a : axes) add(a);
  }

  constexpr void add(MeshAxis axis) {
    bits |= static_cast<uint8_t>(1U << static_cast<unsigned>(axis));
  }

  constexpr bool contains(MeshAxis axis) const {
    return ((bits >> static_cast<unsigned>(axis)) & 1U) != 0;
  }

  constexpr bool meets(AxisSet other) const { return (bits & other.bits) != 0; }

  bool operator==(const AxisSet&) const = default;
};

/// The axes that cut the batch.
inline constexpr AxisSet kBatchAxes{MeshAxis::kDpReplicate, MeshAxis::kDpShard};

/// The axes whose ranks own slices of a bucket of dense weights.
inline constexpr AxisSet kShardAxes{MeshAxis::kDpShard, MeshAxis::kCp};

/// The axes whose ranks compute on different tokens or layers, each with terms of a result.
inline constexpr AxisSet kResultAxes{MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard,
                                     MeshAxis::kCp};

/// The axes whose ranks hold different gradients, so that squares are summed over them.
inline constexpr AxisSet kNormAxes{MeshAxis::kPp, MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kTp};

/// The axes whose ranks run the same blocks.
inline constexpr AxisSet kStageAxes{MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kCp,
                                    MeshAxis::kTp};

/// Returns a text such as "dp_shard x cp".
std::string to_string(AxisSet axes);

using MeshCoordinates = EnumArray<MeshAxis, int, kNumMeshAxes>;

struct Mesh {
  EnumArray<MeshAxis, int, kNumMeshAxes> degrees{1, 1, 1, 1, 1};

  int degree(MeshAxis axis) const { return degrees[axis]; }

  int degree(AxisSet axes) const;
  int size() const;

  /// REQUIRES: 0 <= rank < size().
  MeshCoordinates coordinates(int rank) const;
  int rank_of(const MeshCoordinates& at) const;

  /// Returns `rank` and the ranks that differ from it only in `axes`, in rank order.
  std::vector<int> group_of(int rank, AxisSet axes) const;
};

/// How attention gets keys and values of other ranks where cp cuts the sequence.
enum class ContextMethod : uint8_t { kAllGather, kRing, kUlysses };

/// A group as a communication op refers to it. `id` counts the groups of one rank's plan.
struct CommGroup {
  int id = -1;
  int size = 1;
  int rank = 0;  ///< this rank's place in the group

  bool operator==(const CommGroup&) const = default;
};

/// The traffic of a group; it separates groups of the same ranks, each with its own stream.
enum class GroupPurpose : uint8_t {
  kGeneral,   ///< "tp"
  kAgain,     ///< "tp again": what the backward gathers, some of it a second time
  kCovered,   ///< "tp covered": what the backward sums while weight gradients run
  kRing,      ///< "tp ring": chunks of what matmuls read or write
  kGather,    ///< "dp_shard x cp gather": weights
  kReduce,    ///< "dp_shard x cp reduce": gradients
  kReplicas,  ///< "tp replicas reduce": gradients of what some ranks of the axis replicate
  kTied,      ///< "pp tied weights": gradients of what stages share
  kMessage,   ///< "pp 3 to 4": values between stages
};

/// Returns the name of a group that is not for a message.
std::string group_name(AxisSet axes, GroupPurpose purpose);

/// Returns the name of the group for messages between two pipeline ranks.
std::string message_name(int from, int to);

/// The groups of one rank's plan, by id. Each lists world ranks in group order; all members list
/// the same ranks under the same name.
struct GroupTable {
  struct Entry {
    std::string name;
    std::vector<int> ranks;
    AxisSet axes;  ///< axes in which the ranks differ
    GroupPurpose purpose = GroupPurpose::kGeneral;

    bool operator==(const Entry&) const = default;
  };

  std::vector<Entry> entries;

  /// Returns the group as an op refers to it, and adds it if it is new; `rank` must be a member.
  CommGroup add(const Entry& group, int rank);
};

}  // namespace tokamak
