#include "tokamak/train/guard/slow_ranks.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/host.h"

namespace tokamak {
namespace {

// Less than this is a step's noise on any machine.
constexpr double kLeastSeconds = 1e-3;

// Returns the smaller one of two in the middle: of two ranks the slower is compared with the
// faster.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Seconds>
double sum_of(const Seconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace

SlowRanks::SlowRanks(World& world, const Mesh& mesh, const SlowRankOptions& options)
    : world_(world), o_(options), slow_lines_(static_cast<size_t>(world.size()), 0) {
  std::map<int, std::vector<int>> by_stage;
  for (int rank = 0; rank < world.size(); ++rank)
    by_stage[mesh.coordinates(rank)[MeshAxis::kPp]].push_back(rank);
  for (const auto& [stage, ranks] : by_stage) stages_.push_back(ranks);
  if (o_.factor > 0.0) hosts_ = world.all_gather_text(host_name());
}

std::string SlowRanks::add(const PhaseSeconds& seconds) {
  if (world_.size() == 1 || o_.factor <= 0.0) return "";
  const Seconds mine{seconds.data.value_or(0.0), seconds.forward.value_or(0.0),
                     seconds.backward.value_or(0.0), seconds.optimizer.value_or(0.0)};
  const std::vector<std::string> texts =
      world_.all_gather_text(std::string(reinterpret_cast<const char*>(mine.data()), sizeof mine));
  if (!std::exchange(is_warm_, true)) return "";  // the first step makes what the others use
  std::vector<Seconds> all(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    TOK_CHECK(texts[rank].size() == sizeof(Seconds));
    std::memcpy(all[rank].data(), texts[rank].data(), sizeof(Seconds));
  }
  std::string lines;
  for (const std::vector<int>& stage : stages_) {
    Seconds usual{};
    std::vector<double> sums;
    for (const int rank : stage) sums.push_back(sum_of(all[static_cast<size_t>(rank)]));
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      std::vector<double> of_phase;
      for (const int rank : stage) of_phase.push_back(all[static_cast<size_t>(rank)][phase]);
      usual[phase] = lower_median(of_phase);
    }
    const double usual_sum = lower_median(sums);
    for (size_t i = 0; i < stage.size(); ++i) {
      const bool is_slow = sums[i] > o_.factor * usual_sum && sums[i] - usual_sum > kLeastSeconds;
      int64_t& count = slow_lines_[static_cast<size_t>(stage[i])];
      count = is_slow ? count + 1 : 0;
      if (count > 0 && count % o_.lines == 0)
        lines += (lines.empty() ? "" : "; ") + line_of(stage[i], all, usual);
    }
  }
  return lines;
}

std::string SlowRanks::line_of(int rank, const std::vector<Seconds>& all,
                               const Seconds& usual) const {
  const Seconds& mine = all[static_cast<size_t>(rank)];
  size_t worst = 0;
  for (size_t phase = 1; phase < kPhases.size(); ++phase) {
    if (mine[phase] - usual[phase] > mine[worst] - usual[worst]) worst = phase;
  }
  return fmt::format(
      "rank {} on {} is slow: {:.3f} s of work in a step where the median is {:.3f} s, most in {} "
      "({:.3f} s, median {:.3f} s)",
      rank, hosts_[static_cast<size_t>(rank)], sum_of(mine), sum_of(usual), kPhases[worst],
      mine[worst], usual[worst]);
}

}  // namespace tokamak
