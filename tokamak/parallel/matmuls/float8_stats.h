// Counts the codes of each operand of a run's float8 matmuls (debug.fp8_stats).
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/parallel/matmuls/float8_table.h"

namespace tokamak {

/// The State of the last step's figures of all ranks that run the same blocks: CodeCounts' numbers
/// of codes, f64 [sites, 3], and the greatest magnitudes and inverse scales, f32 [sites, 2].
inline constexpr std::string_view kFloat8Counts = "fp8.counts";
inline constexpr std::string_view kFloat8Greatest = "fp8.greatest";

/// Adds to one rank's training graph what counts the codes of each site as matmuls read them: those
/// of x and w in the forward, and of g in the input gradient. Sites are named as Float8Table names
/// rows. Validation counts nothing.
class Float8Stats {
 public:
  /// `from` is the graph whose marked matmuls have the sites.
  Float8Stats(const Graph& from, const Float8Recipe& recipe);

  /// Counts codes as their values lie, each value once. `amax` is the maximum of the values where
  /// these may have saturated; it may be invalid.
  void count(Graph& to, const std::string& module, Float8Role role, Value codes, Value inverse,
             ScaleGrid grid, Value amax);

  /// Emits the sums and maxima over all `replicas`, at the end of the step.
  void finish(Graph& to, const CommGroup& replicas);

 private:
  Value window(Graph& to, std::string_view of, const std::string& site) const;
  void publish(Graph& to, std::string_view from, std::string_view name, ReduceOp op,
               const CommGroup& replicas) const;

  const Float8Recipe recipe_;
  std::vector<std::string> sites_;  // empty: nothing is counted
  std::map<std::string, int64_t> row_of_;
  std::map<std::string, std::pair<Value, Value>> so_far_;  // counts and maxima by site
  std::set<Value> counted_;
};

/// Returns the names of a rank's sites, in the order of the rows of the State above.
std::vector<std::string> float8_sites(const StateTable& states);

}  // namespace tokamak
