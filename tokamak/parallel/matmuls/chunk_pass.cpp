#include "tokamak/parallel/matmuls/chunk_pass.h"

#include <utility>

#include "tokamak/ops/layout/reshape.h"
#include "tokamak/parallel/matmuls/chunk_cuts.h"

namespace tokamak {

ChunkPass::ChunkPass(const Graph& graph, const RankContext& context)
    : graph_(graph),
      context_(context),
      rewriter_(graph),
      num_uses_(static_cast<size_t>(graph.size())) {
  for (int32_t i = 0; i < graph.size(); ++i)
    for_each_use(graph.node(i), [&](Value v) { ++num_uses_[static_cast<size_t>(v.node)]; });
}

Graph ChunkPass::run() {
  for (int32_t i = 0; i < graph_.size(); ++i) find(i);
  for (int32_t i = 0; i < graph_.size(); ++i) {
    if (const auto at = pairs_.find(i); at != pairs_.end()) {
      put(graph_.node(i), at->second, {i, 0});
    } else if (!is_gone_.contains(i)) {
      rewriter_.copy(i);
    }
  }
  return rewriter_.finish();
}

bool ChunkPass::is_of_tp(CommGroup group) const {
  return context_.groups->entries[group.id].axes == AxisSet{MeshAxis::kTp};
}

Label ChunkPass::label_of_chunk(const Node& collective, int64_t chunk) {
  Label label = collective.label;
  label.origin.part = static_cast<int32_t>(chunk);
  return label;
}

void ChunkPass::find(int32_t i) {
  const Node& reader = graph_.node(i);
  if (!is_reader(reader)) return;
  std::vector<int32_t> inside;  // from what the reader reads back to the source
  int32_t at = reader.in[0].node;
  for (;; at = graph_.node(at).in[0].node) {
    inside.push_back(at);
    if (num_uses_[static_cast<size_t>(at)] != 1) return;
    if (is_source(graph_.node(at))) break;
    if (graph_.node(at).as<Reshape>() == nullptr) return;
  }
  const Node& source = graph_.node(at);
  const bool gathers = has_plain_rows(reader);
  const Dims& read = graph_.type(reader.in[0]).dims;
  const Dims& whole = gathers ? read : source.out[0].dims;
  const Dims& blocks = gathers ? source.out[0].dims : read;
  // Only of one sample are blocks consecutive rows.
  const bool is_one_sample = whole.size() == 3 && whole[0] == 1 && blocks.size() == 3;
  if (!is_one_sample || blocks[0] < 2 || blocks[0] * blocks[1] != whole[1]) return;
  Pair pair{.source = at,
            .chunks = chunks_of(graph_, gathers ? reader : source, gathers ? source : reader,
                                blocks[0], context_.options->token_chunks)};
  if (pair.chunks.size() < 2) return;
  is_gone_.insert(inside.begin(), inside.end());
  pairs_.emplace(i, std::move(pair));
}

}  // namespace tokamak
