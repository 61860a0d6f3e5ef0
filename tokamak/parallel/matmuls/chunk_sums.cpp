#include "tokamak/parallel/matmuls/chunk_sums.h"

#include <utility>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/concat_rows.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/parallel/matmuls/chunk_cuts.h"
#include "tokamak/parallel/matmuls/chunk_pass.h"

namespace tokamak {
namespace {

class SumChunker : public ChunkPass {
 public:
  using ChunkPass::ChunkPass;

 private:
  // A sum on kCoveredSumStream already has weight gradients to run beside it.
  bool is_reader(const Node& node) const override {
    if (!node.is_leaf() && node.stream == kCoveredSumStream) return false;
    const auto* scatter = node.as<ReduceScatter>();
    return scatter != nullptr && scatter->dim == 1 && node.accumulations.empty() &&
           is_of_tp(scatter->group);
  }

  bool is_source(const Node& node) const override { return has_plain_rows(node); }

  void put(const Node& sum, const Pair& pair, Value old) override {
    const Node& matmul = graph_.node(pair.source);
    Graph& to = rewriter_.to;
    const int64_t block_rows = graph_.type(sum.in[0]).dims[1];
    const CommGroup group = context_.group({MeshAxis::kTp}, GroupPurpose::kCovered);
    std::vector<Value> in = rewriter_.moved(matmul).in;
    const Value x = in[0];
    std::vector<Value> sums;
    int64_t begin = 0;
    for (const int chunk : pair.chunks) {
      const int64_t end = begin + chunk * block_rows;
      const LabelScope of_matmul(to, matmul.label);
      in[0] = rows_from(to, x, begin, end);
      const Value term = to.add_node(matmul.rules, matmul.op, in)[0];
      const LabelScope of_sum(to, label_of_chunk(sum, std::ssize(sums)));
      const Value blocks = to.apply(Reshape{.dims = {chunk, block_rows, -1}}, {term});
      const Value scattered = to.apply(ReduceScatter{.group = group, .dim = 1}, {blocks});
      to.mutable_node(scattered.node).stream = kCoveredSumStream;
      sums.push_back(scattered);
      begin = end;
    }
    const LabelScope scope(to, sum.label);
    rewriter_.map(old, to.apply(ConcatRows{}, std::move(sums)));
  }
};

}  // namespace

Graph chunk_sums(const Graph& graph, const RankContext& context) {
  return SumChunker(graph, context).run();
}

}  // namespace tokamak
