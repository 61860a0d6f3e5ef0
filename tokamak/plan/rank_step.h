// A rank's step as other ranks notice it: its collectives, and how its streams come to them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/graph/mesh.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

/// Ranks with equal steps differ in nothing that a third rank could notice, but for their own
/// coordinates.
struct RankStep {
  struct Group {
    std::string name;
    /// By axis: the coordinates of the members, in group order; none = those of the rank itself.
    EnumArray<MeshAxis, std::vector<int>, kNumMeshAxes> at;

    bool operator==(const Group&) const = default;
  };

  struct Call {
    int group = 0;  ///< by `groups`
    std::string op;
    std::string what;  ///< what is equal for all members: attributes, types, and what it serves
  };

  struct Task {  ///< a call within a segment
    int stream = 0;
    int call = 0;  ///< by `calls`
    /// Earlier tasks of the part on other streams, the last of each stream, that have ended before
    /// it begins; those that the task before it on its stream has waited for are left out.
    std::vector<int> waits;
  };

  /// A segment, as it runs in its last item or in the others.
  struct Part {
    bool is_background = false;
    std::vector<int> outliving_streams;
    std::vector<Task> tasks;
    std::vector<int> end_waits;  ///< tasks of those streams that its end waits for
  };

  struct Item {
    int part = 0;
    int microbatch = 0;
    std::vector<int> waits;  ///< earlier items
  };

  std::vector<Group> groups;
  std::vector<Call> calls;
  std::vector<Part> parts;
  std::vector<Item> items;
};

/// Returns what others notice of a step of `rank` by `plan`. Without a pipeline all microbatches
/// but the last do the same one after another, so that two stand for any number. Throws Bug unless
/// the members of each group are the ranks at some coordinates of some axes, and one stream uses
/// it.
RankStep step_of(const Plan& plan, const Mesh& mesh, int rank, int num_microbatches);

/// Returns the step as a text, equal for equal steps.
std::string to_text(const RankStep& step);

/// Does the reverse. Throws Bug where the text was not written by to_text().
RankStep parse_rank_step(std::string_view text);

/// Whether the op is a send or a receive.
bool is_message(std::string_view op);

/// The ranks of a mesh by what they do: those of a kind have equal steps. A rank's kind follows
/// from the classes of its coordinates, axis by axis.
struct RankKinds {
  Mesh mesh;
  EnumArray<MeshAxis, std::vector<int>, kNumMeshAxes> class_of;  ///< by axis and coordinate
  EnumArray<MeshAxis, int, kNumMeshAxes> num_classes{};

  int size() const;

  int kind_of(const MeshCoordinates& classes) const;

  /// Returns the first rank of each kind.
  std::vector<int> first_ranks() const;
};

/// Returns the kinds of ranks whose steps have these digests, by rank: coordinates of an axis are
/// of one class if ranks that differ in them alone do the same.
RankKinds find_kinds(const Mesh& mesh, std::span<const uint64_t> digests);

/// Returns a kind for each rank.
RankKinds each_its_own(const Mesh& mesh);

/// Throws Bug (check_ranks.cpp) unless a step of all ranks, of which those of kind k take
/// steps[k], finishes when a collective holds its stream until all members have come: members of a
/// group must enter the same collectives in the same order, with equal attributes and types, for
/// the same values (Label::origin) of the same microbatch, and no two ranks may wait for each
/// other.
///
/// One rank of each kind is run, and a collective begins once one rank of each of its members'
/// kinds has come. This proves it for all ranks: take the collectives in the order in which they
/// begin here. If all ranks of each kind have run what was run before, they all come to the next
/// one; the members of its group, in the eyes of each, are the ranks at the same coordinates of the
/// group's axes and at each one's own of the others, so that they name the same members, and all of
/// those have come.
void check_kinds(const RankKinds& kinds, std::span<const RankStep> steps);

}  // namespace tokamak
