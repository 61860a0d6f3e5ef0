#include "tokamak/run/plan_proof.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"

namespace tokamak {
namespace {

constexpr auto kPp = static_cast<size_t>(MeshAxis::kPp);

// Plans ranks, each once, and keeps what others notice of them.
class Steps {
 public:
  Steps(const PlannedRun& own, const Target& target, int num_threads)
      : own_(own),
        target_(target),
        num_threads_(num_threads),
        whole_(own.config(), own.shape(), target),
        lines_{{own.rank(), step_lines(own)}} {}

  void plan(const std::vector<int>& ranks) {
    std::vector<int> wanted;
    for (const int rank : ranks) {
      if (lines_.try_emplace(rank).second) wanted.push_back(rank);
    }
    in_parallel(wanted.size(), num_threads_, [&](size_t i) {
      RunShape shape = own_.shape();
      shape.distribute.rank = wanted[i];
      lines_.at(wanted[i]) = step_lines(PlannedRun(own_.config(), shape, target_, whole_));
    });
  }

  const std::string& of(int rank) const { return lines_.at(rank); }

  int num_planned() const { return static_cast<int>(lines_.size()); }

 private:
  const PlannedRun& own_;
  const Target& target_;
  int num_threads_;
  WholeGraphs whole_;
  std::map<int, std::string> lines_;  // by rank
};

// Returns the ranks of the first and the last stage with this coordinate of `axis` and else none
// but zeros.
std::vector<int> probes_of(const Mesh& mesh, size_t axis, int coordinate) {
  std::vector<int> ranks;
  for (const int stage : {0, mesh.degrees[kPp] - 1}) {
    MeshCoordinates at{};
    at[axis] = coordinate;
    at[kPp] = stage;
    ranks.push_back(mesh.rank_of(at));
  }
  return ranks;
}

}  // namespace

void prove_plans(const PlannedRun& run) {
  for (const Plan* plan : run.plans()) check_plan(*plan);
}

std::string step_lines(const PlannedRun& run) {
  std::string lines;
  for (const Plan* plan : run.plans()) {
    const bool is_validation = plan == run.validation_plan();
    const int64_t count = is_validation ? 1 : run.shape().distribute.num_microbatches;
    lines += to_text(step_of(*plan, run.mesh(), run.rank(), static_cast<int>(count)));
    lines += '\n';
  }
  return lines;
}

void prove_ranks(const RankKinds& kinds, std::span<const std::string> lines) {
  std::vector<std::string_view> left(lines.begin(), lines.end());
  while (!left[0].empty()) {
    std::vector<RankStep> steps;
    for (std::string_view& of_rank : left) {
      const size_t end = of_rank.find('\n');
      TOK_CHECK(end != std::string_view::npos, "ranks have unequal numbers of plans");
      steps.push_back(parse_rank_step(of_rank.substr(0, end)));
      of_rank.remove_prefix(end + 1);
    }
    check_kinds(kinds, steps);
  }
  for (const std::string_view of_rank : left)
    TOK_CHECK(of_rank.empty(), "ranks have unequal numbers of plans");
}

PlannedKinds prove_all_ranks(const PlannedRun& own, const Target& target, int num_threads) {
  prove_plans(own);
  const Mesh& mesh = own.mesh();
  Steps steps(own, target, num_threads);
  RankKinds kinds = each_its_own(mesh);
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    if (a == kPp) continue;
    const auto are_equal = [&](int one, int other) {
      const std::vector<int> ranks = probes_of(mesh, a, one);
      const std::vector<int> others = probes_of(mesh, a, other);
      steps.plan(ranks);
      steps.plan(others);
      return std::equal(ranks.begin(), ranks.end(), others.begin(),
                        [&](int r, int o) { return steps.of(r) == steps.of(o); });
    };
    std::vector<int>& classes = kinds.class_of[a];
    // Coordinates between two that are equal are taken to be so, too.
    for (int first = 0, next = 0; first < mesh.degrees[a]; first = next) {
      next = first + 1;
      int unequal = mesh.degrees[a] - 1;
      if (next > unequal || are_equal(first, unequal)) next = ++unequal;
      while (next < unequal) {
        const int middle = next + (unequal - next) / 2;
        if (are_equal(first, middle)) {
          next = middle + 1;
        } else {
          unequal = middle;
        }
      }
      const int of = first == 0 ? 0 : classes[static_cast<size_t>(first) - 1] + 1;
      std::fill(classes.begin() + first, classes.begin() + next, of);
      kinds.num_classes[a] = of + 1;
    }
  }
  const std::vector<int> ranks = kinds.first_ranks();
  steps.plan(ranks);
  std::vector<std::string> lines;
  for (const int rank : ranks) lines.push_back(steps.of(rank));
  prove_ranks(kinds, lines);
  return {.kinds = std::move(kinds), .num_planned = steps.num_planned()};
}

}  // namespace tokamak
