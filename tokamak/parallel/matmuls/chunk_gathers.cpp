#include "tokamak/parallel/matmuls/chunk_gathers.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/concat_rows.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"
#include "tokamak/parallel/matmuls/chunk_cuts.h"

namespace tokamak {
namespace {

// A gather and the matmul that reads it.
struct ChunkedGather {
  int32_t gather = -1;
  std::vector<int> chunks;  // of blocks
};

class GatherChunker {
 public:
  GatherChunker(const Graph& graph, const RankContext& context)
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
      if (const auto at = matmuls_.find(i); at != matmuls_.end()) {
        put(i, at->second);
      } else if (!is_gone_.contains(i)) {
        rewriter_.copy(i);
      }
    }
    return rewriter_.finish();
  }

 private:
  void find(int32_t i) {
    const Node& matmul = graph_.node(i);
    if (!has_plain_rows(matmul) || matmul.label.phase != Phase::kForward) return;
    std::vector<int32_t> inside;  // from the views of the gathered value back to the gather
    int32_t at = matmul.in[0].node;
    for (;; at = graph_.node(at).in[0].node) {
      inside.push_back(at);
      if (num_uses_[static_cast<size_t>(at)] != 1) return;
      if (graph_.node(at).as<AllGather>() != nullptr) break;
      if (graph_.node(at).as<Reshape>() == nullptr) return;
    }
    const Node& gather = graph_.node(at);
    const auto* op = gather.as<AllGather>();
    const GroupTable::Entry& group = context_.groups->entries[op->group.id];
    if (op->dim != 1 || !(group.axes == AxisSet{MeshAxis::kTp}) || gather.is_dropped) return;
    // Only of one sample are blocks consecutive rows.
    const Dims& whole = graph_.type(matmul.in[0]).dims;
    const Dims& blocks = gather.out[0].dims;
    const bool is_one_sample = whole.size() == 3 && whole[0] == 1 && blocks.size() == 3;
    if (!is_one_sample || blocks[0] < 2 || blocks[0] * blocks[1] != whole[1]) return;
    ChunkedGather found{
        .gather = at,
        .chunks = chunks_of(graph_, matmul, gather, blocks[0], context_.options->token_chunks)};
    if (found.chunks.size() < 2) return;
    is_gone_.insert(inside.begin(), inside.end());
    matmuls_.emplace(i, std::move(found));
  }

  void put(int32_t i, const ChunkedGather& chunked) {
    const Node& matmul = graph_.node(i);
    const Node& gather = graph_.node(chunked.gather);
    Graph& to = rewriter_.to;
    const CommGroup group = context_.group({MeshAxis::kTp}, GroupPurpose::kAgain);
    const Value mine = rewriter_(gather.in[0]);  // [blocks, rows of one, k]
    std::vector<Value> gathered;
    int64_t begin = 0;
    for (const int chunk : chunked.chunks) {
      const LabelScope scope(to, gather.label);
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
    rewriter_.map({i, 0}, to.apply(Reshape{.dims = matmul.out[0].dims}, {joint}));
  }

  const Graph& graph_;
  const RankContext& context_;
  std::vector<int> num_uses_;                 // by node
  std::map<int32_t, ChunkedGather> matmuls_;  // by the matmul
  std::set<int32_t> is_gone_;
  Rewriter rewriter_;
};

}  // namespace

Graph chunk_gathers(const Graph& graph, const RankContext& context) {
  return GatherChunker(graph, context).run();
}

}  // namespace tokamak
