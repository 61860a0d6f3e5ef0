#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/plan/rank_step.h"

namespace tokamak {
namespace {

// What a stream does next: a call, or the beginning or end of an item on stream 0.
struct Event {
  int call = -1;  // -1 = it only waits
  int microbatch = 0;
  int after = 0;  // where the events that it waits for begin
  int num_after = 0;
  bool is_done = false;
};

struct Stream {
  int id = 0;
  std::vector<int> events;  // in order
  size_t next = 0;
};

// A step of one rank: for each stream its events in order.
class RankRun {
 public:
  const RankStep* step = nullptr;
  std::vector<Event> events;
  std::vector<Stream> streams;

  explicit RankRun(const RankStep& of) : step(&of) {
    std::vector<Ends> item_ends;
    for (const RankStep::Item& item : of.items) {
      const RankStep::Part& part = of.parts.at(item.part);
      std::vector<int> after;
      for (const int w : item.waits) {
        const std::vector<int>& ends = item_ends.at(w).all;
        after.insert(after.end(), ends.begin(), ends.end());
      }
      if (part.is_background) {
        after.push_back(add(0, {}, {}));
        item_ends.push_back(add_tasks(part, item.microbatch, after));
        continue;
      }
      const int begin = add(0, {}, after);
      item_ends.push_back(add_tasks(part, item.microbatch, {begin}));
      add(0, {}, item_ends.back().joined);
    }
  }

  bool may_begin(const Event& event) const {
    return std::all_of(after_.begin() + event.after, after_.begin() + event.after + event.num_after,
                       [&](int e) { return events[e].is_done; });
  }

 private:
  // The last event on each stream of an item: on all streams, and on those that its end waits for.
  struct Ends {
    std::vector<int> all;
    std::vector<int> joined;
  };

  int add(int stream, Event event, std::span<const int> after) {
    const int id = static_cast<int>(events.size());
    event.after = static_cast<int>(after_.size());
    event.num_after = static_cast<int>(after.size());
    after_.insert(after_.end(), after.begin(), after.end());
    events.push_back(event);
    auto at = std::find_if(streams.begin(), streams.end(),
                           [&](const Stream& s) { return s.id == stream; });
    if (at == streams.end()) at = streams.insert(at, {.id = stream, .events = {}});
    at->events.push_back(id);
    return id;
  }

  Ends add_tasks(const RankStep::Part& part, int microbatch, const std::vector<int>& begins_after) {
    std::vector<int> of_task;
    std::map<int, int> last;
    for (const RankStep::Task& task : part.tasks) {
      std::vector<int> after;
      if (task.stream != 0 && !last.contains(task.stream)) after = begins_after;
      for (const int w : task.waits) after.push_back(of_task.at(w));
      of_task.push_back(add(task.stream, {.call = task.call, .microbatch = microbatch}, after));
      last[task.stream] = of_task.back();
    }
    Ends ends;
    for (const auto& [stream, event] : last) {
      ends.all.push_back(event);
      const std::vector<int>& outliving = part.outliving_streams;
      if (std::find(outliving.begin(), outliving.end(), stream) == outliving.end())
        ends.joined.push_back(event);
    }
    for (const int w : part.end_waits) ends.joined.push_back(of_task.at(w));
    return ends;
  }

  std::vector<int> after_;
};

// Returns the op that the other members must enter.
std::string_view partner_of(std::string_view op) {
  if (op == "send") return "recv";
  return op == "recv" ? "send" : op;
}

// Runs a rank of each kind until nothing moves.
class World {
 public:
  World(const RankKinds& kinds, std::span<const RankStep> steps)
      : kinds_(kinds), ranks_(kinds.first_ranks()) {
    for (size_t kind = 0; kind < ranks_.size(); ++kind) {
      runs_.emplace_back(steps[kind]);
      auto& meetings = meeting_of_.emplace_back();
      for (const RankStep::Group& group : steps[kind].groups)
        meetings.push_back(meeting_at(group, ranks_[kind]));
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int kind = 0; kind < std::ssize(runs_); ++kind) {
        for (Stream& stream : runs_[kind].streams) {
          while (advance(kind, stream)) moved = true;
        }
      }
    }
    std::vector<std::string> stuck;
    for (size_t kind = 0; kind < runs_.size(); ++kind) {
      const RankRun& run = runs_[kind];
      for (const Stream& stream : run.streams) {
        if (stream.next == stream.events.size()) continue;
        const int call = run.events[stream.events[stream.next]].call;
        stuck.push_back(
            fmt::format("rank {} stream {}: {}", ranks_[kind], stream.id,
                        call < 0 ? "waits for another stream" : show(run.step->calls[call])));
      }
    }
    TOK_CHECK(stuck.empty(), "ranks wait for each other: {}", fmt::join(stuck, ", "));
  }

 private:
  // A member that has reached a collective.
  struct Arrival {
    int kind = 0;
    int event = 0;
  };

  // Where the members of groups that look alike to all their members come together.
  struct Meeting {
    int num_kinds = 0;  // of members
    std::vector<Arrival> here;
  };

  using MeetingKey = std::tuple<std::string, std::vector<std::vector<int>>, std::vector<int>>;

  static std::string show(const RankStep::Call& call) {
    return fmt::format("{} of {}", call.op, call.what);
  }

  // Returns the place where members of `group` meet, of which `rank` is one.
  int meeting_at(const RankStep::Group& group, int rank) {
    const MeshCoordinates own = kinds_.mesh.coordinates(rank);
    std::vector<int> classes;  // of the axes that the members share
    int num_kinds = 1;
    for (size_t a = 0; a < kNumMeshAxes; ++a) {
      classes.push_back(group.at[a].empty() ? kinds_.class_of[a][own[a]] : -1);
      std::set<int> of_members;
      for (const int c : group.at[a]) of_members.insert(kinds_.class_of[a].at(c));
      if (!group.at[a].empty()) num_kinds *= static_cast<int>(of_members.size());
    }
    const MeetingKey key{group.name, {group.at.begin(), group.at.end()}, classes};
    const auto [at, is_new] = keys_.emplace(key, std::ssize(meetings_));
    if (is_new) meetings_.push_back({.num_kinds = num_kinds, .here = {}});
    return at->second;
  }

  // Moves one stream by one event if it can.
  bool advance(int kind, Stream& stream) {
    if (stream.next == stream.events.size()) return false;
    RankRun& run = runs_[kind];
    const int id = stream.events[stream.next];
    Event& event = run.events[id];
    if (!event.is_done) {
      if (!run.may_begin(event)) return false;
      if (event.call >= 0 && !arrive({.kind = kind, .event = id})) return false;
      event.is_done = true;
    }
    ++stream.next;
    return true;
  }

  // Returns whether all members have come.
  bool arrive(const Arrival& arrival) {
    const int group = call_of(arrival).group;
    Meeting& meeting = meetings_[meeting_of_[arrival.kind].at(group)];
    const auto is_here = [&](const Arrival& a) { return a.kind == arrival.kind; };
    if (std::none_of(meeting.here.begin(), meeting.here.end(), is_here))
      meeting.here.push_back(arrival);
    if (std::ssize(meeting.here) < meeting.num_kinds) return false;
    check_same(meeting, runs_[arrival.kind].step->groups[group].name);
    for (const Arrival& a : meeting.here) runs_[a.kind].events[a.event].is_done = true;
    meeting.here.clear();
    return true;
  }

  const RankStep::Call& call_of(const Arrival& a) const {
    const RankRun& run = runs_[a.kind];
    return run.step->calls.at(run.events[a.event].call);
  }

  // Ranks of one kind enter the same, which two ends of a message do not.
  void check_same(const Meeting& meeting, const std::string& group) const {
    const Arrival& first = meeting.here[0];
    const Arrival& last = meeting.here.back();
    const auto shown = [&](const Arrival& a) {
      return fmt::format("{}, in microbatch {}", show(call_of(a)), microbatch_of(a));
    };
    for (const Arrival& a : meeting.here) {
      const bool is_other = &a != &first || (&first == &last && is_message(call_of(a).op));
      if (!is_other) continue;
      const bool same = call_of(a).op == partner_of(call_of(first).op) &&
                        call_of(a).what == call_of(first).what &&
                        microbatch_of(a) == microbatch_of(first);
      TOK_CHECK(same, "group {}: rank {} enters {}, rank {} {}", group, ranks_[first.kind],
                shown(first), ranks_[a.kind], shown(a));
    }
  }

  int microbatch_of(const Arrival& a) const { return runs_[a.kind].events[a.event].microbatch; }

  const RankKinds& kinds_;
  std::vector<int> ranks_;  // by kind
  std::vector<RankRun> runs_;
  std::vector<std::vector<int>> meeting_of_;  // by kind, group
  std::map<MeetingKey, int> keys_;
  std::vector<Meeting> meetings_;
};

}  // namespace

void check_kinds(const RankKinds& kinds, std::span<const RankStep> steps) {
  World(kinds, steps).run();
}

void check_ranks(const Mesh& mesh, std::span<const Plan* const> plans, int num_microbatches) {
  std::vector<RankStep> steps;
  for (int rank = 0; rank < std::ssize(plans); ++rank)
    steps.push_back(step_of(*plans[rank], mesh, rank, num_microbatches));
  check_kinds(each_its_own(mesh), steps);
}

}  // namespace tokamak
