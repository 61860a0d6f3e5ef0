#include "tokamak/plan/rank_step.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

RankStep::Group group_of(const GroupTable::Entry& entry, const Mesh& mesh, int rank) {
  RankStep::Group group{.name = entry.name, .at = {}};
  const MeshCoordinates own = mesh.coordinates(rank);
  std::vector<MeshCoordinates> members{own};
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    std::vector<int>& at = group.at[a];
    for (const int member : entry.ranks) {
      const int c = mesh.coordinates(member)[a];
      if (std::find(at.begin(), at.end(), c) == at.end()) at.push_back(c);
    }
    if (at == std::vector{own[a]}) at.clear();
    if (at.empty()) continue;
    std::vector<MeshCoordinates> all;
    for (MeshCoordinates member : members) {
      for (const int c : at) {
        member[a] = c;
        all.push_back(member);
      }
    }
    members = std::move(all);
  }
  std::vector<int> ranks;
  for (const MeshCoordinates& member : members) ranks.push_back(mesh.rank_of(member));
  const bool has_rank = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  TOK_CHECK(ranks == entry.ranks && has_rank, "rank {}: group {} has ranks {}", rank, entry.name,
            fmt::join(entry.ranks, ","));
  return group;
}

// Names the value that a collective serves, since those of equal types may serve different values.
// A message joins two places of the model.
std::string what_of(const Task& task) {
  const auto first = [](const std::vector<Operand>& operands) {
    return operands.empty() ? std::string() : to_string(operands[0].type);
  };
  const Label& label = task.label;
  const Origin& origin = label.origin;
  std::string of = origin.state >= 0 ? fmt::format("state {}", origin.state)
                                     : fmt::format("value {}", origin.value);
  if (origin.part > 0) of += fmt::format(" (part {})", origin.part);
  if (is_message(task.rules->name)) {
    const TensorType& type = (task.in.empty() ? task.out : task.in)[0].type;
    return fmt::format("{} of {} for {}", type.numel(), name_of(type.dtype), of);
  }
  const auto of_no_rank = task.rules->in_group(task.op.get(), {});
  return fmt::format("{} to {}{} for {} of block {}, {}", first(task.in), first(task.out),
                     task.rules->describe(of_no_rank.get()), of, label.block, name_of(label.phase));
}

// Leaves out what computes: each call waits for the calls that it would wait for through that.
class PartOf {
 public:
  PartOf(const Segment& segment, bool is_last, const std::vector<int>& call_of_task)
      : segment_(segment), tasks_(stream_tasks(segment)), clocks_(tasks_, is_last) {
    part_.is_background = segment.is_background;
    part_.outliving_streams = segment.outliving_streams;
    for (int t = 0; t < std::ssize(tasks_); ++t) {
      clocks_.issue(t, segment.tasks[t].waits);
      if (call_of_task[t] < 0 || (!is_last && tasks_[t].when == When::kLastMicrobatch)) continue;
      part_.tasks.push_back(
          {.stream = tasks_[t].stream, .call = call_of_task[t], .waits = new_waits(t)});
      calls_[tasks_[t].stream].push_back({t, static_cast<int>(part_.tasks.size()) - 1});
    }
    add_end_waits();
  }

  RankStep::Part take() { return std::move(part_); }

 private:
  struct Kept {
    int task = 0;   // of the segment
    int place = 0;  // among those of the part
  };

  static std::vector<StreamTask> stream_tasks(const Segment& segment) {
    std::vector<StreamTask> tasks;
    for (const Task& task : segment.tasks)
      tasks.push_back({.stream = task.stream, .when = task.when});
    return tasks;
  }

  // Returns the last call of a stream that has ended once task `t` has, or -1.
  int last_known(const std::vector<Kept>& calls, int t) const {
    const auto end = std::partition_point(calls.begin(), calls.end(), [&](const Kept& kept) {
      return clocks_.has(clocks_.after(t), kept.task);
    });
    return end == calls.begin() ? -1 : (end - 1)->place;
  }

  std::vector<int> new_waits(int t) {
    const int own = tasks_[t].stream;
    std::vector<int> waits;
    for (const auto& [stream, calls] : calls_) {
      const int last = stream == own ? -1 : last_known(calls, t);
      int& known = known_.try_emplace({own, stream}, -1).first->second;
      if (last > known) waits.push_back(last);
      known = std::max(known, last);
    }
    return waits;
  }

  // The end of an item waits for all tasks of the other streams, and so for what these wait for.
  void add_end_waits() {
    for (const auto& [stream, calls] : calls_) {
      if (!segment_.outlives(stream)) continue;
      int last = -1;
      for (int t = 0; t < std::ssize(tasks_); ++t) {
        if (!segment_.outlives(tasks_[t].stream)) last = std::max(last, last_known(calls, t));
      }
      if (last >= 0) part_.end_waits.push_back(last);
    }
  }

  const Segment& segment_;
  std::vector<StreamTask> tasks_;
  StreamClocks clocks_;
  std::map<int, std::vector<Kept>> calls_;    // by stream
  std::map<std::pair<int, int>, int> known_;  // by stream, other stream
  RankStep::Part part_;
};

// Returns the place of each task's call in `calls`, -1 for those that have none.
std::vector<int> add_calls(const Segment& segment, std::vector<RankStep::Call>& calls) {
  std::vector<int> call_of_task;
  for (const Task& task : segment.tasks) {
    call_of_task.push_back(task.rules->is_communication ? static_cast<int>(calls.size()) : -1);
    if (!task.rules->is_communication) continue;
    calls.push_back({.group = task.rules->group(task.op.get()).id,
                     .op = std::string(task.rules->name),
                     .what = what_of(task)});
  }
  return call_of_task;
}

// Checks the groups that ops name.
void require_groups(const Plan& plan, int rank) {
  check_groups(plan);
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (!task.rules->is_communication) continue;
      const CommGroup group = task.rules->group(task.op.get());
      TOK_CHECK(group.id >= 0 && group.id < std::ssize(plan.groups.entries),
                "rank {}: {} names group {}", rank, task.rules->name, group.id);
      const std::vector<int>& ranks = plan.groups.entries[group.id].ranks;
      const bool fits = group.size == std::ssize(ranks) && group.rank >= 0 &&
                        group.rank < group.size && ranks[group.rank] == rank;
      TOK_CHECK(fits, "rank {}: {} is member {} of {} in group {} of ranks {}", rank,
                task.rules->name, group.rank, group.size, plan.groups.entries[group.id].name,
                fmt::join(ranks, ","));
    }
  }
}

// Numbers and texts, each with what ends or counts it.
class Writer {
 public:
  std::string text;

  void operator()(int64_t number) {
    text += std::to_string(number);
    text += ' ';
  }

  void operator()(const std::string& bytes) {
    (*this)(std::ssize(bytes));
    text += bytes;
  }

  void operator()(const std::vector<int>& numbers) {
    (*this)(std::ssize(numbers));
    for (const int n : numbers) (*this)(n);
  }
};

class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}

  int number() {
    int n = 0;
    const auto [end, code] = std::from_chars(left_.data(), left_.data() + left_.size(), n);
    const auto used = static_cast<size_t>(end - left_.data());
    TOK_CHECK(code == std::errc() && used < left_.size() && *end == ' ', "no number of a step");
    left_.remove_prefix(used + 1);
    return n;
  }

  // Each entry takes a byte or more.
  size_t count() {
    const int n = number();
    TOK_CHECK(n >= 0 && static_cast<size_t>(n) <= left_.size(), "{} entries of a step", n);
    return static_cast<size_t>(n);
  }

  std::string bytes() {
    const size_t n = count();
    std::string bytes(left_.substr(0, n));
    left_.remove_prefix(n);
    return bytes;
  }

  std::vector<int> numbers() {
    std::vector<int> all(count());
    for (int& n : all) n = number();
    return all;
  }

  bool is_at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
};

}  // namespace

bool is_message(std::string_view op) {
  return op == "send" || op == "recv";
}

RankStep step_of(const Plan& plan, const Mesh& mesh, int rank, int num_microbatches) {
  require_groups(plan, rank);
  RankStep step;
  for (const GroupTable::Entry& entry : plan.groups.entries)
    step.groups.push_back(group_of(entry, mesh, rank));
  for (const Segment& segment : plan.segments) {
    const std::vector<int> calls = add_calls(segment, step.calls);
    for (const bool is_last : {false, true})
      step.parts.push_back(PartOf(segment, is_last, calls).take());
  }
  for (const ScheduleItem& item : plan.schedule(std::min(num_microbatches, 2))) {
    step.items.push_back({.part = 2 * item.segment + (item.is_last ? 1 : 0),
                          .microbatch = item.microbatch,
                          .waits = item.waits});
  }
  return step;
}

std::string to_text(const RankStep& step) {
  Writer put;
  put(std::ssize(step.groups));
  for (const RankStep::Group& group : step.groups) {
    put(group.name);
    for (const std::vector<int>& at : group.at) put(at);
  }
  put(std::ssize(step.calls));
  for (const RankStep::Call& call : step.calls) {
    put(call.group);
    put(call.op);
    put(call.what);
  }
  put(std::ssize(step.parts));
  for (const RankStep::Part& part : step.parts) {
    put(part.is_background ? 1 : 0);
    put(part.outliving_streams);
    put(std::ssize(part.tasks));
    for (const RankStep::Task& task : part.tasks) {
      put(task.stream);
      put(task.call);
      put(task.waits);
    }
    put(part.end_waits);
  }
  put(std::ssize(step.items));
  for (const RankStep::Item& item : step.items) {
    put(item.part);
    put(item.microbatch);
    put(item.waits);
  }
  return put.text;
}

RankStep parse_rank_step(std::string_view text) {
  Reader next(text);
  RankStep step;
  step.groups.resize(next.count());
  for (RankStep::Group& group : step.groups) {
    group.name = next.bytes();
    for (std::vector<int>& at : group.at) at = next.numbers();
  }
  step.calls.resize(next.count());
  for (RankStep::Call& call : step.calls) {
    call.group = next.number();
    call.op = next.bytes();
    call.what = next.bytes();
  }
  step.parts.resize(next.count());
  for (RankStep::Part& part : step.parts) {
    part.is_background = next.number() != 0;
    part.outliving_streams = next.numbers();
    part.tasks.resize(next.count());
    for (RankStep::Task& task : part.tasks) {
      task.stream = next.number();
      task.call = next.number();
      task.waits = next.numbers();
    }
    part.end_waits = next.numbers();
  }
  step.items.resize(next.count());
  for (RankStep::Item& item : step.items) {
    item.part = next.number();
    item.microbatch = next.number();
    item.waits = next.numbers();
  }
  TOK_CHECK(next.is_at_end(), "a step continues after its end");
  return step;
}

int RankKinds::size() const {
  return std::accumulate(num_classes.begin(), num_classes.end(), 1, std::multiplies<>());
}

int RankKinds::kind_of(const MeshCoordinates& classes) const {
  return Mesh{.degrees = num_classes}.rank_of(classes);
}

std::vector<int> RankKinds::first_ranks() const {
  const Mesh kinds{.degrees = num_classes};
  std::vector<int> ranks;
  for (int kind = 0; kind < size(); ++kind) {
    MeshCoordinates at = kinds.coordinates(kind);
    for (size_t a = 0; a < kNumMeshAxes; ++a) {
      const auto first = std::find(class_of[a].begin(), class_of[a].end(), at[a]);
      at[a] = static_cast<int>(first - class_of[a].begin());
    }
    ranks.push_back(mesh.rank_of(at));
  }
  return ranks;
}

RankKinds find_kinds(const Mesh& mesh, std::span<const uint64_t> digests) {
  RankKinds kinds{.mesh = mesh, .class_of = {}};
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    std::vector<std::vector<uint64_t>> seen(static_cast<size_t>(mesh.degrees[a]));
    for (int rank = 0; rank < mesh.size(); ++rank)
      seen[mesh.coordinates(rank)[a]].push_back(digests[rank]);
    std::map<std::vector<uint64_t>, int> classes;
    for (const std::vector<uint64_t>& of : seen)
      kinds.class_of[a].push_back(classes.emplace(of, std::ssize(classes)).first->second);
    kinds.num_classes[a] = static_cast<int>(classes.size());
  }
  return kinds;
}

RankKinds each_its_own(const Mesh& mesh) {
  RankKinds kinds{.mesh = mesh, .class_of = {}, .num_classes = mesh.degrees};
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    kinds.class_of[a].resize(static_cast<size_t>(mesh.degrees[a]));
    std::iota(kinds.class_of[a].begin(), kinds.class_of[a].end(), 0);
  }
  return kinds;
}

}  // namespace tokamak
