// What the passes of assign_buffers work on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tokamak/plan/buffers.h"

namespace tokamak {

inline int64_t align(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

/// A lifetime [first, last] in task order, and a size; `offset` is the result.
struct Lifetime {
  int32_t first = 0;
  int32_t last = 0;
  int64_t bytes = 0;
  int64_t offset = 0;
};

/// Bytes of a storage that node `node` has written.
struct Write {
  int32_t node = -1;
  int64_t begin = 0;
  int64_t end = 0;
};

/// A range of bytes that one or several values share over time.
struct Storage {
  static constexpr int kNoStream = -1;
  static constexpr int kManyStreams = -2;

  ArenaKind arena = ArenaKind::kScratch;
  StateId state;
  int64_t bytes = 0;
  int64_t offset = 0;
  int32_t segment = -1;
  int32_t last_segment = -1;  ///< that reads it
  bool is_kept = false;       ///< beyond its segment
  int slot_class = -1;
  Lifetime life;
  std::vector<Write> writes;
  int read_by_stream = kNoStream;
  bool from_forward = false;
};

/// Where a value lies: the bytes that `layout` selects, as they are after the first `version`
/// writes.
struct Placed {
  int32_t storage = -1;
  size_t version = 0;
  Layout layout;
};

/// The nodes of a plan in task order, the storages of their values, and the plan in the making.
struct Buffers {
  const Node& node(int32_t i) const { return graph.node(i); }

  Placed& placed(Value v) { return placed_values[v.node][v.out]; }

  const Placed& placed(Value v) const { return placed_values[v.node][v.out]; }

  Storage& storage_of(Value v) { return storages[placed(v).storage]; }

  const Storage& storage_of(Value v) const { return storages[placed(v).storage]; }

  int32_t order(int32_t i) const { return order_of_node[i]; }

  int32_t segment_of(int32_t i) const { return segment_of_node[i]; }

  /// Returns the bytes of a value in its storage.
  Write bytes_of(Value v) const;

  std::string name_of_producer(int32_t i) const;

  int64_t workspace_bytes(int32_t i) const;

  const Graph& graph;
  const StateLayout& layout;
  const std::vector<SegmentNodes>& segments;
  const ChosenVariants& variants;
  const Target& target;
  std::vector<int32_t> segment_of_node = {};
  std::vector<int32_t> order_of_node = {};
  std::vector<std::vector<Placed>> placed_values = {};  ///< by node, output
  std::vector<Storage> storages = {};
  std::vector<std::vector<Value>> members = {};  ///< values by storage
  std::map<Value, int32_t> last_use = {};
  std::map<int32_t, int64_t> workspace_offset = {};
  std::map<int32_t, int32_t> held_until = {};  ///< task order, by node of another stream
  int64_t activation_bytes = 0;
  Plan plan = {};
};

}  // namespace tokamak
