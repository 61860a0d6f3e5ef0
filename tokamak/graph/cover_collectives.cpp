#include "tokamak/graph/cover_collectives.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/graph/fuse.h"
#include "tokamak/graph/rewriter.h"

namespace tokamak {
namespace {

// The weight gradients that wait take at most the time of this many collectives: what they read
// lives on.
constexpr double kMostWaiting = 9.0;
// At most this many collectives of a forward are covered.
constexpr int kMostLeft = 8;

constexpr double kOfOtherSegment = std::numeric_limits<double>::infinity();

// The elements of State that a leaf reads.
struct Extent {
  StateId whole;
  int64_t begin = 0;
  int64_t end = 0;

  bool meets(const Extent& other) const {
    return whole == other.whole && begin < other.end && other.begin < end;
  }
};

class Cover {
 public:
  Cover(const Graph& graph, const Rates& rates, bool leaves_some)
      : graph_(graph),
        rates_(rates),
        rewriter_(graph),
        is_read_(static_cast<size_t>(graph.size())),
        done_(is_read_.size(), kOfOtherSegment) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      for (const Value v : graph.node(i).in) {
        if (v.valid()) is_read_[v.node] = true;
      }
    }
    find_companions();
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(i);
      if (is_covered(node))
        largest_ = std::max(largest_, flops_beside(node_cost(graph_, node), node.stream, rates_));
      if (leaves_some && is_covered_in_forward(node)) {
        largest_left_ =
            std::max(largest_left_, flops_beside(node_cost(graph_, node), node.stream, rates_));
        ++num_left_[node.label.stage];
      }
    }
    for (auto& [stage, number] : num_left_)
      most_left_ = std::max(most_left_, std::min(number, kMostLeft));
  }

  bool has_work() const { return largest_ > 0.0 || largest_left_ > 0.0; }

  Graph run() {
    const Node* before = nullptr;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(i);
      if (node.is_leaf()) continue;
      if (before != nullptr && !is_of_same_segment(node, *before)) end_segment(before->label);
      before = &node;
      if (companions_.contains(i)) continue;
      if (can_wait(i) || is_reduction_that_waits(node)) {
        wait(i);
        continue;
      }
      if (!node.rules->is_view) emit_what_meets(node);
      cover(i);
      emit(i);
    }
    if (before != nullptr) end_segment(before->label);
    return rewriter_.finish();
  }

 private:
  struct Waiting {
    int32_t node = 0;
    double flops = 0.0;
    std::vector<Value> reads;  // storages
    std::vector<Value> writes;
  };

  struct Flight {
    double flops = 0.0;  // operations that take as long
    double until = 0.0;  // emitted operations after which it has ended
  };

  static bool is_of_same_segment(const Node& a, const Node& b) {
    return a.label.phase == b.label.phase && a.label.stage == b.label.stage;
  }

  bool is_covered(const Node& node) const {
    if (node.is_leaf() || node.is_clone || node.label.phase != Phase::kBackward) return false;
    if (is_on_covered_stream(*node.rules, node.stream)) return true;
    return node.rules->is_communication && node.stream == kContextStream &&
           node_cost(graph_, node).collective == Cost::Collective::kReduceScatter;
  }

  Extent extent(StateId state) const {
    const StateTable& states = graph_.states();
    Extent e{.whole = state, .begin = 0, .end = states[state].type.numel()};
    for (StateId up = states[e.whole].window_of; up.valid(); up = states[e.whole].window_of) {
      e.begin += states[e.whole].window_begin;
      e.end += states[e.whole].window_begin;
      e.whole = up;
    }
    return e;
  }

  std::vector<Value> read_storages(const Node& node) const {
    std::vector<Value> all;
    for (const Value v : node.in) {
      if (v.valid()) all.push_back(storage_of(graph_, v));
    }
    return all;
  }

  // Returns the storages into which the node adds, or which it takes over.
  std::vector<Value> written_storages(const Node& node) const {
    std::vector<Value> all;
    for (const Accumulation& a : node.accumulations) all.push_back(storage_of(graph_, a.into));
    for (const Alias& a : node.rules->aliases(node.op.get())) {
      if (a.must) all.push_back(storage_of(graph_, node.in[a.in]));
    }
    return all;
  }

  // Whether the bytes of two storages meet.
  bool meet(Value a, Value b) const {
    const Node& x = graph_.producer(a);
    const Node& y = graph_.producer(b);
    if (x.is_leaf() && y.is_leaf()) return extent(x.state).meets(extent(y.state));
    return a == b;
  }

  bool meet(const std::vector<Value>& some, const std::vector<Value>& others) const {
    return std::any_of(some.begin(), some.end(), [&](Value a) {
      return std::any_of(others.begin(), others.end(), [&](Value b) { return meet(a, b); });
    });
  }

  // A weight gradient has no output but what it adds into gradient storage.
  bool can_wait(int32_t i) const {
    const Node& node = graph_.node(i);
    const bool is_gradient = node.label.phase == Phase::kBackward && node.label.block >= 0 &&
                             !node.accumulations.empty() && !node.rules->is_communication &&
                             !node.rules->has_side_effect;
    if (!is_gradient || node.accumulations.size() != node.out.size()) return false;
    const Cost c = node_cost(graph_, node);
    return c.kind == Cost::Kind::kGemm && c.product == Cost::Product::kWeightGradient &&
           !is_read_[static_cast<size_t>(i)];
  }

  // Finds the nodes whose results nothing but one weight gradient reads, which they may precede at
  // once: those that transpose its operands, for example. What they read is no larger than what
  // they make, so they may wait, too. The only reader of what a collective brings keeps its place,
  // since weight gradients run in front of it.
  void find_companions() {
    std::map<int32_t, std::set<int32_t>> readers;
    for (int32_t i = 0; i < graph_.size(); ++i)
      for_each_use(graph_.node(i), [&](Value v) { readers[v.node].insert(i); });
    for (const auto& [i, by] : readers) {
      const Node& node = graph_.node(i);
      if (node.is_leaf() || node.rules->is_view || by.size() != 1 || !can_wait(*by.begin()) ||
          !is_of_same_segment(node, graph_.node(*by.begin())) || node.stream != 0 ||
          node.when != graph_.node(*by.begin()).when || !node.accumulations.empty() ||
          node.rules->has_side_effect || !written_storages(node).empty() ||
          reads_collective_alone(node, readers))
        continue;
      const Cost c = node_cost(graph_, node);
      if (c.kind != Cost::Kind::kMemory || c.bytes_read > c.bytes_written) continue;
      companions_.insert(i);
      with_[*by.begin()].push_back(i);
    }
  }

  bool reads_collective_alone(const Node& node,
                              const std::map<int32_t, std::set<int32_t>>& readers) const {
    return std::any_of(node.in.begin(), node.in.end(), [&](Value v) {
      const Node& producer = graph_.producer(v);
      if (producer.is_leaf() || readers.at(v.node).size() > 1) return false;
      return producer.rules->is_communication ||
             (producer.rules->is_view && reads_collective_alone(producer, readers));
    });
  }

  void wait(int32_t i) {
    const Node& node = graph_.node(i);
    waiting_.push_back({.node = i,
                        .flops = node.rules->is_communication ? 0.0 : node_cost(graph_, node).flops,
                        .reads = read_storages(node),
                        .writes = written_storages(node)});
    for (const int32_t companion : with_[i]) {
      for (const Value v : read_storages(graph_.node(companion)))
        waiting_.back().reads.push_back(v);
    }
    waiting_flops_ += waiting_.back().flops;
    const double most = kMostWaiting * largest_ + most_left_ * largest_left_;
    while (waiting_flops_ - waiting_.front().flops >= most) emit_first();
  }

  // A reduction of gradients goes with the weight gradients before it, which may be left.
  bool is_reduction_that_waits(const Node& node) const {
    if (most_left_ == 0 || node.when != When::kLastMicrobatch || node.label.block < 0 ||
        node.label.phase != Phase::kBackward || !node.rules->is_communication || node.in.empty())
      return false;
    const auto is_state = [&](Value v) { return graph_.producer(v).is_leaf(); };
    if (!std::all_of(node.in.begin(), node.in.end(), is_state)) return false;
    const std::vector<Value> reads = read_storages(node);
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [&](const Waiting& w) { return meet(w.writes, reads); });
  }

  // Emits the weight gradients that must precede `node`, and all that have waited longer.
  void emit_what_meets(const Node& node) {
    if (waiting_.empty()) return;
    const std::vector<Value> reads = read_storages(node);
    const std::vector<Value> writes = written_storages(node);
    const auto meets = [&](const Waiting& w) {
      return meet(w.writes, reads) || meet(w.writes, writes) || meet(w.reads, writes);
    };
    while (std::any_of(waiting_.begin(), waiting_.end(), meets)) emit_first();
  }

  // If node `i` reads what a collective brings, emits weight gradients that take about as long.
  void cover(int32_t i) {
    const Node& node = graph_.node(i);
    for (const Value v : node.in) {
      const auto it = flights_.find(v);
      if (it == flights_.end()) continue;
      const Flight flight = it->second;
      if (node.rules->is_view) {
        for (int32_t k = 0; k < std::ssize(node.out); ++k) flights_[{i, k}] = flight;
        continue;
      }
      const auto is_bare = [&] { return flight.until - flops_ > kMostBare * flight.flops; };
      while (!waiting_.empty() && is_bare()) emit_first();
      flights_.erase(v);
    }
  }

  void emit_first() {
    const int32_t i = waiting_.front().node;
    waiting_flops_ -= waiting_.front().flops;
    waiting_.pop_front();
    for (const int32_t companion : with_[i]) emit(companion);
    emit(i);
  }

  // Returns how many of those that wait are left for the forward after this backward: from the
  // last one on, enough to cover its collectives.
  size_t num_left(const Label& label) const {
    const auto wanted = num_left_.find(label.stage);
    if (wanted == num_left_.end() || label.phase != Phase::kBackward) return 0;
    int covered = 0;
    double flops = 0.0;
    size_t count = 0;
    for (auto w = waiting_.rbegin(); w != waiting_.rend() && covered < most_left_; ++w, ++count) {
      flops += w->flops;
      if (flops < (1.0 - kMostBare) * largest_left_) continue;
      ++covered;
      flops = 0.0;
    }
    return count;
  }

  void end_segment(const Label& label) {
    const size_t left = num_left(label);
    while (waiting_.size() > left) emit_first();
    for (const Waiting& w : waiting_) {
      leave(w.node);
      left_[label.stage].push_back(w);
    }
    waiting_.clear();
    waiting_flops_ = 0.0;
    flights_.clear();
    std::fill(done_.begin(), done_.end(), kOfOtherSegment);
  }

  void leave(int32_t i) {
    for (const int32_t companion : with_[i]) emit(companion);
    Node node = rewriter_.moved(graph_.node(i));
    node.label.phase = Phase::kWeightGradient;
    rewriter_.put(i, std::move(node));
  }

  // Whether a node of the backward relies on what has been left for after it.
  bool follows_left(const Node& node) const {
    const auto left = left_.find(node.label.stage);
    if (left == left_.end() || node.label.phase != Phase::kBackward || node.rules->is_view)
      return false;
    const std::vector<Value> reads = read_storages(node);
    const std::vector<Value> writes = written_storages(node);
    return std::any_of(left->second.begin(), left->second.end(), [&](const Waiting& w) {
      return meet(w.writes, reads) || meet(w.writes, writes);
    });
  }

  // Returns flops_ at the time when the node's inputs were complete. A collective that reads values
  // of other segments may have to wait for memory, so it is taken to begin at its own place.
  double begin_of(const Node& node) const {
    double begin = 0.0;
    for (const Value v : node.in) {
      if (v.valid()) begin = std::max(begin, done_[static_cast<size_t>(v.node)]);
    }
    return std::min(begin, flops_);
  }

  void emit(int32_t i) {
    const Node& node = graph_.node(i);
    if (follows_left(node)) {
      TOK_CHECK(node.rules->is_communication && node.when == When::kLastMicrobatch,
                "{} of block {} follows weight gradients that were left", node.rules->name,
                node.label.block);
      leave(i);
      return;
    }
    rewriter_.copy(i);
    double& done = done_[static_cast<size_t>(i)];
    if (node.rules->is_view) {
      done = begin_of(node);
      return;
    }
    const Cost c = node_cost(graph_, node);
    flops_ += c.flops;
    done = flops_;
    if (!is_covered(node)) return;
    const double flops = flops_beside(c, node.stream, rates_);
    double& stream_is_free = stream_is_free_[node.stream];
    stream_is_free = std::max(begin_of(node), stream_is_free) + flops;
    for (int32_t k = 0; k < std::ssize(node.out); ++k)
      flights_[{i, k}] = {.flops = flops, .until = stream_is_free};
  }

  const Graph& graph_;
  const Rates& rates_;
  Rewriter rewriter_;
  std::vector<bool> is_read_;
  double largest_ = 0.0;                  // operations that cover the largest collective
  double flops_ = 0.0;                    // emitted so far
  std::vector<double> done_;              // by node: flops_ once it had been emitted
  std::map<int, double> stream_is_free_;  // by stream: flops_ at the end of its last collective
  double waiting_flops_ = 0.0;
  std::map<int, int> num_left_;               // by stage: covered collectives of its forward
  double largest_left_ = 0.0;                 // operations that cover the largest of them
  int most_left_ = 0;                         // the most that a forward has
  std::map<int, std::vector<Waiting>> left_;  // by stage
  std::deque<Waiting> waiting_;
  std::set<int32_t> companions_;                  // of weight gradients, which they precede
  std::map<int32_t, std::vector<int32_t>> with_;  // by weight gradient
  std::map<Value, Flight> flights_;               // by outputs of collectives
};

}  // namespace

double flops_beside(const Cost& collective, int stream, const Rates& rates) {
  const bool is_context = stream == kContextStream;
  const double sent_per_s = is_context ? rates.network_bytes_per_s : rates.link_bytes_per_s;
  return collective.bytes_sent * (rates.flops / sent_per_s);
}

bool is_covered_in_forward(const Node& node) {
  return !node.is_leaf() && !node.is_dropped &&
         is_covered_in_forward(*node.rules, node.label, node.stream);
}

Graph cover_collectives(const Graph& graph, const Rates& rates, bool leaves_some) {
  Cover cover(graph, rates, leaves_some);
  return cover.has_work() ? cover.run() : graph;
}

}  // namespace tokamak
