// The walk that the passes share which cut a matmul and its collective into chunks of rows.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/rewriter.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// Rewrites pairs of a matmul and a collective of tensor parallelism, of which one reads the other
/// through views and nothing else does.
class ChunkPass {
 public:
  ChunkPass(const Graph& graph, const RankContext& context);
  ChunkPass(const ChunkPass&) = delete;
  ChunkPass& operator=(const ChunkPass&) = delete;
  virtual ~ChunkPass() = default;

  Graph run();

 protected:
  struct Pair {
    int32_t source = -1;      ///< the one that is read
    std::vector<int> chunks;  ///< of blocks
  };

  virtual bool is_reader(const Node& node) const = 0;
  virtual bool is_source(const Node& node) const = 0;
  virtual void put(const Node& reader, const Pair& pair, Value old) = 0;

  bool is_of_tp(CommGroup group) const;

  static Label label_of_chunk(const Node& collective, int64_t chunk);

  const Graph& graph_;
  const RankContext& context_;
  Rewriter rewriter_;

 private:
  void find(int32_t i);

  std::vector<int> num_uses_;      // by node
  std::map<int32_t, Pair> pairs_;  // by the reader
  std::set<int32_t> is_gone_;
};

}  // namespace tokamak
