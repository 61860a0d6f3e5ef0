#include "tokamak/parallel/matmuls/chunk_sums.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/concat_rows.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/parallel/matmuls/chunk_cuts.h"

namespace tokamak {
namespace {

// A matmul and the reduce-scatter that reads it.
struct ChunkedSum {
  int32_t matmul = -1;
  std::vector<int> chunks;  // of blocks
};

class SumChunker {
 public:
  SumChunker(const Graph& graph, const RankContext& context)
      : graph_(graph),
        context_(context),
        num_uses_(static_cast<size_t>(graph.size())),
        rewriter_(graph) {
    for (int32_t i = 0; i < graph.size(); ++i)
      for_each_use(graph.node(i), [&](Value v) { ++num_uses_[static_cast<size_t>(v.node)]; });
    for (int32_t i = 0; i < graph.size(); ++i) find(i);
  }

  Graph run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (const auto at = sums_.find(i); at != sums_.end()) {
        put(i, at->second);
      } else if (!is_gone_.contains(i)) {
        rewriter_.copy(i);
      }
    }
    return rewriter_.finish();
  }

 private:
  void find(int32_t i) {
    const Node& node = graph_.node(i);
    const auto* scatter = node.as<ReduceScatter>();
    if (scatter == nullptr || scatter->dim != 1 || !node.accumulations.empty()) return;
    const GroupTable::Entry& group = context_.groups->entries[scatter->group.id];
    if (!(group.axes == AxisSet{MeshAxis::kTp})) return;
    std::vector<int32_t> inside;  // from the matmul's views back to itself
    int32_t at = node.in[0].node;
    for (;; at = graph_.node(at).in[0].node) {
      inside.push_back(at);
      if (num_uses_[static_cast<size_t>(at)] != 1) return;
      if (has_plain_rows(graph_.node(at))) break;
      if (graph_.node(at).as<Reshape>() == nullptr) return;
    }
    // Only of one sample are blocks consecutive rows.
    const Dims& whole = graph_.node(at).out[0].dims;
    const Dims& blocks = graph_.type(node.in[0]).dims;
    const bool is_one_sample = whole.size() == 3 && whole[0] == 1 && blocks.size() == 3;
    if (!is_one_sample || blocks[0] < 2 || blocks[0] * blocks[1] != whole[1]) return;
    ChunkedSum found{.matmul = at,
                     .chunks = chunks_of(graph_, graph_.node(at), node, blocks[0],
                                         context_.options->token_chunks)};
    if (found.chunks.size() < 2) return;
    is_gone_.insert(inside.begin(), inside.end());
    sums_.emplace(i, std::move(found));
  }

  void put(int32_t i, const ChunkedSum& chunked) {
    const Node& matmul = graph_.node(chunked.matmul);
    const Node& sum = graph_.node(i);
    Graph& to = rewriter_.to;
    const int64_t block_rows = graph_.type(sum.in[0]).dims[1];
    const CommGroup group = context_.group({MeshAxis::kTp}, GroupPurpose::kCovered);
    std::vector<Value> in = rewriter_.moved(matmul).in;
    const Value x = in[0];
    std::vector<Value> sums;
    int64_t begin = 0;
    for (const int chunk : chunked.chunks) {
      const int64_t end = begin + chunk * block_rows;
      const LabelScope of_matmul(to, matmul.label);
      in[0] = rows_from(to, x, begin, end);
      const Value term = to.add_node(matmul.rules, matmul.op, in)[0];
      const LabelScope of_sum(to, sum.label);
      const Value blocks = to.apply(Reshape{.dims = {chunk, block_rows, -1}}, {term});
      const Value scattered = to.apply(ReduceScatter{.group = group, .dim = 1}, {blocks});
      to.mutable_node(scattered.node).stream = kCoveredSumStream;
      sums.push_back(scattered);
      begin = end;
    }
    const LabelScope scope(to, sum.label);
    rewriter_.map({i, 0}, to.apply(ConcatRows{}, std::move(sums)));
  }

  const Graph& graph_;
  const RankContext& context_;
  std::vector<int> num_uses_;           // by node
  std::map<int32_t, ChunkedSum> sums_;  // by the reduce-scatter
  std::set<int32_t> is_gone_;
  Rewriter rewriter_;
};

}  // namespace

Graph chunk_sums(const Graph& graph, const RankContext& context) {
  return SumChunker(graph, context).run();
}

}  // namespace tokamak
