#include "tokamak/parallel/matmuls/chunk_gathers.h"

#include <utility>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/concat_rows.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/parallel/matmuls/chunk_cuts.h"
#include "tokamak/parallel/matmuls/chunk_pass.h"

namespace tokamak {
namespace {

class GatherChunker : public ChunkPass {
 public:
  using ChunkPass::ChunkPass;

 private:
  bool is_reader(const Node& matmul) const override {
    return has_plain_rows(matmul) && matmul.label.phase == Phase::kForward;
  }

  bool is_source(const Node& node) const override {
    const auto* gather = node.as<AllGather>();
    return gather != nullptr && gather->dim == 1 && is_of_tp(gather->group) && !node.is_dropped;
  }

  void put(const Node& matmul, const Pair& pair, Value old) override {
    const Node& gather = graph_.node(pair.source);
    Graph& to = rewriter_.to;
    const CommGroup group = context_.group({MeshAxis::kTp}, GroupPurpose::kAgain);
    const Value mine = rewriter_(gather.in[0]);  // [blocks, rows of one, k]
    std::vector<Value> gathered;
    int64_t begin = 0;
    for (const int chunk : pair.chunks) {
      const LabelScope scope(to, label_of_chunk(gather, std::ssize(gathered)));
      const Value blocks = to.apply(SliceRows{.begin = begin, .end = begin + chunk}, {mine});
      gathered.push_back(to.apply(AllGather{.group = group, .dim = 1}, {blocks}));
      to.mutable_node(gathered.back().node).stream = kCoveredGatherStream;
      begin += chunk;
    }
    const LabelScope scope(to, matmul.label);
    std::vector<Value> in;
    for (size_t k = 0; k < matmul.in.size(); ++k)
      in.push_back(k == 0 ? Value{} : rewriter_(matmul.in[k]));
    std::vector<Value> products;
    for (const Value x : gathered) {
      in[0] = to.apply(Reshape{.dims = {-1, to.type(x).dims.back()}}, {x});
      products.push_back(to.add_node(matmul.rules, matmul.op, in)[0]);
    }
    const Value joint = to.apply(ConcatRows{}, std::move(products));
    rewriter_.map(old, to.apply(Reshape{.dims = matmul.out[0].dims}, {joint}));
  }
};

}  // namespace

Graph chunk_gathers(const Graph& graph, const RankContext& context) {
  return GatherChunker(graph, context).run();
}

}  // namespace tokamak
