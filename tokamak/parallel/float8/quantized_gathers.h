// Weights that travel between the ranks that own them as quantized values.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/float8/quantize_ranges.h"
#include "tokamak/parallel/float8/float8_table.h"
#include "tokamak/parallel/float8/shared_scales.h"

namespace tokamak {

/// Quantized values as a matmul reads them, and their inverse scales.
struct QuantizedValues {
  Value values, inverse;
};

/// Rewrites the gathers of buckets of which quantized matmuls are the only readers. Each owner
/// takes the maxima of its slices once a step, one all-reduce makes them those of whole weights,
/// and a gather brings the quantized slices under them: the bits that one rank with the whole
/// weight would make. Delayed scales come from `table`, and maxima only where it has none.
class QuantizedGathers {
 public:
  /// `owners` are the ranks that hold parts of the same weights, those of tp included. All must
  /// outlive it.
  QuantizedGathers(const Graph& graph, const Float8Recipe& recipe, const SharedScales& weights_of,
                   const CommGroup& owners, Float8Table& table, Rewriter& rewriter);

  /// Whether node `i` is such a gather, or a view of what it gathers.
  bool replaces(int32_t i) const;

  /// Emits what becomes of such a node, under the graph's label.
  void put(int32_t i);

  /// Returns the quantized values of `weight`, as it lies, if they were gathered.
  std::optional<QuantizedValues> find(Value weight) const;

 private:
  struct Bucket {
    int32_t gather = -1;  // node
    Value master;
    DType rounds_to = DType::kF32;
    int64_t slice = 0;
    bool is_refused = false;
    std::map<int64_t, QuantizedRange> ranges;  // by begin, in the whole bucket
    std::map<int64_t, Value> inverse;          // by site
    std::map<int64_t, std::string> modules;    // by site
  };

  // The part of a gathered bucket that a view covers.
  struct Part {
    size_t bucket = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  void find_parts();
  std::map<Value, int32_t> matmuls_of_weights() const;
  void refuse_other_readers();
  void refuse_divided_scales(const SharedScales& weights_of);
  void number_sites(const SharedScales& weights_of);
  void refuse_divided_merges();
  bool is_gathered(Value weight) const;
  const QuantizedRange* range_at(const Part& part, int64_t at) const;
  std::vector<QuantizedRange> ranges_of_slice(const Bucket& bucket) const;
  void take_maxima();
  void put_gather(Bucket& bucket);
  Value one_of(Value values, int64_t at, const Node& like);
  Value emitted(Value v, const Node& like);

  const Graph& graph_;
  const Float8Recipe& recipe_;
  const CommGroup& owners_;
  Float8Table& table_;
  Rewriter& rewriter_;
  std::vector<Bucket> buckets_;
  std::map<Value, Part> parts_;  // gathers, and their views
  int64_t num_sites_ = 0;
  Value maxima_;
};

}  // namespace tokamak
