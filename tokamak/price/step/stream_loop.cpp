#include "tokamak/price/step/stream_loop.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "tokamak/core/error.h"

namespace tokamak::price {
namespace {

constexpr double kNoEnd = HUGE_VAL;

bool is_communication(const Work& work) {
  return work.category == Category::kExposedComm;
}

// The ranks that must come before a Work begins.
struct Meeting {
  struct Member {
    int rank = 0;
    int stream = 0;
  };

  std::vector<Member> arrived;
  double seconds = 0.0;
};

class RankLoop {
 public:
  RankLoop(const RankWorks& rank, const Slowdown& slowdown)
      : rank_(rank), slowdown_(slowdown), streams_(static_cast<size_t>(rank.num_streams)) {
    for (const Work& work : rank.works) {
      ++streams_[work.stream].count;
      TOK_CHECK(work.link >= 0 && work.link < std::ssize(on_link_), "link {}", work.link);
    }
    int begin = 0;
    for (Stream& stream : streams_) {
      stream.next = begin;
      stream.end = begin;
      begin += stream.count;
    }
    order_.resize(rank.works.size());
    for (size_t w = 0; w < rank.works.size(); ++w)
      order_[streams_[rank.works[w].stream].end++] = static_cast<int>(w);
    is_done_.assign(rank.works.size(), 0);
    for (Stream& stream : streams_) load_head(stream);
    times.begin_s.assign(rank.works.size(), 0.0);
    times.end_s.assign(rank.works.size(), 0.0);
  }

  RankTimes times;

  /// Returns the next time at which a running Work ends.
  double next_s() const { return next_s_; }

  /// Ends the Works that end at `now`.
  void end_works(double now) {
    account(now);
    for (Stream& stream : streams_) {
      if (!stream.is_running || stream.finish_s > now) continue;
      finish(stream, now);
    }
  }

  /// Returns a stream whose head can begin now, or -1.
  int startable(size_t from) {
    for (size_t s = from; s < streams_.size(); ++s) {
      Stream& stream = streams_[s];
      if (stream.next == stream.end || stream.is_running || stream.has_arrived) continue;
      if (has_all(stream)) return static_cast<int>(s);
    }
    return -1;
  }

  const Work& head(int stream) const { return streams_[stream].head; }

  void arrive(int stream, double now) {
    account(now);
    streams_[stream].has_arrived = true;
    if (head(stream).holds) ++held_;
  }

  void begin(int stream_index, double seconds, double now) {
    account(now);
    Stream& stream = streams_[stream_index];
    stream.is_running = true;
    stream.has_arrived = false;
    stream.finish_s = now + seconds;
    times.begin_s[order_[stream.next]] = now;
    count(stream.head, 1);
    if (seconds == 0.0) finish(stream, now);
  }

  /// Updates rates after Works have begun or ended.
  void settle(double now) {
    const bool contends = shared_compute_ > 0 && shared_comm_ > 0;
    next_s_ = kNoEnd;
    for (Stream& stream : streams_) {
      if (!stream.is_running) continue;
      const Work& work = stream.head;
      if (work.is_shared || (held_ > 0 && !is_communication(work)) || stream.factor != 1.0) {
        const double factor = factor_of(work, contends);
        if (factor != stream.factor) {
          stream.finish_s = now + (stream.finish_s - now) / stream.factor * factor;
          stream.factor = factor;
        }
      }
      next_s_ = std::min(next_s_, stream.finish_s);
    }
  }

  size_t num_done() const { return num_done_; }

  size_t num_works() const { return rank_.works.size(); }

  bool is_finished() const { return num_done() == num_works(); }

  std::string describe_stuck() const {
    std::string text;
    for (size_t s = 0; s < streams_.size(); ++s) {
      const Stream& stream = streams_[s];
      if (stream.next == stream.end) continue;
      text += fmt::format(" stream {} at work {}{}", s, order_[stream.next],
                          stream.has_arrived ? " waits for other ranks" : "");
    }
    return text;
  }

 private:
  struct Stream {
    int count = 0;
    int next = 0;  // in order_
    int end = 0;
    bool is_running = false;
    bool has_arrived = false;
    double finish_s = 0.0;
    double factor = 1.0;
    Work head;           // a copy of works[order_[next]], which may be far away in memory
    int num_met = 0;     // of the head's waits
    int blocked_by = 0;  // the first that is not known to have ended
  };

  void load_head(Stream& stream) {
    if (stream.next == stream.end) return;
    stream.head = rank_.works[order_[stream.next]];
    stream.num_met = 0;
    load_wait(stream);
  }

  void load_wait(Stream& stream) const {
    if (stream.num_met == stream.head.num_waits) return;
    const int w = stream.head.first_wait + stream.num_met;
    stream.blocked_by = rank_.waits[w];
  }

  bool has_all(Stream& stream) const {
    while (stream.num_met < stream.head.num_waits) {
      if (is_done_[stream.blocked_by] == 0) return false;
      ++stream.num_met;
      load_wait(stream);
    }
    return true;
  }

  double factor_of(const Work& work, bool contends) const {
    const double message = held_ > 0 && !is_communication(work) ? work.held_factor : 1.0;
    if (!work.is_shared) return message;
    if (is_communication(work))
      return (contends ? slowdown_.communication : 1.0) * on_link_[work.link];
    if (!contends) return message;
    const bool is_copied = by_copy_engine_ == shared_comm_;
    return std::max(is_copied ? slowdown_.compute_beside_copy_engine : slowdown_.compute, message);
  }

  void count(const Work& work, int by) {
    (is_communication(work) ? comm_ : work.is_whole_item ? whole_items_ : compute_) += by;
    if (!work.is_shared) return;
    (is_communication(work) ? shared_comm_ : shared_compute_) += by;
    if (!is_communication(work)) return;
    on_link_[work.link] += by;
    by_copy_engine_ += work.is_by_copy_engine ? by : 0;
  }

  void finish(Stream& stream, double now) {
    const int w = order_[stream.next];
    const Work& work = stream.head;
    count(work, -1);
    if (work.holds && work.meeting >= 0) --held_;
    times.end_s[w] = now;
    times.last_s = std::max(times.last_s, now);
    is_done_[w] = 1;
    ++num_done_;
    stream.is_running = false;
    stream.factor = 1.0;
    ++stream.next;
    load_head(stream);
  }

  // Accounts for the time since the last change.
  void account(double now) {
    const double seconds = now - now_s_;
    now_s_ = now;
    if (seconds <= 0.0) return;
    if (whole_items_ > 0) {
      times.whole_items_s += seconds;
    } else if (compute_ > 0) {
      times.by_category[running_category()] += seconds;
    } else if (comm_ > 0) {
      times.by_category[Category::kExposedComm] += seconds;
    }
    if (comm_ > 0 && whole_items_ + compute_ > 0) times.hidden_comm_s += seconds;
  }

  Category running_category() const {
    for (const Stream& stream : streams_) {
      if (stream.is_running && !is_communication(stream.head)) return stream.head.category;
    }
    return Category::kBubble;
  }

  const RankWorks& rank_;
  const Slowdown& slowdown_;
  std::vector<Stream> streams_;
  std::vector<int> order_;  // works, by stream
  std::vector<uint8_t> is_done_;
  size_t num_done_ = 0;
  double now_s_ = 0.0;
  double next_s_ = kNoEnd;
  int comm_ = 0, compute_ = 0, whole_items_ = 0, shared_comm_ = 0, shared_compute_ = 0;
  int by_copy_engine_ = 0;                 // of shared_comm_
  int held_ = 0;                           // messages that have arrived and not ended
  std::array<int, kMaxLevels> on_link_{};  // single communication tasks that run
};

class Loop {
 public:
  Loop(std::span<const RankWorks> ranks, std::span<const int> sizes, const Slowdown& slowdown)
      : sizes_(sizes),
        meetings_(sizes.size()),
        told_(ranks.size(), kNoEnd),
        is_dirty_(ranks.size(), 0) {
    loops_.reserve(ranks.size());
    for (const RankWorks& rank : ranks) loops_.emplace_back(rank, slowdown);
  }

  std::vector<RankTimes> run(const Progress& progress) {
    constexpr int64_t kEventsBetween = int64_t{1} << 16;
    int64_t num_events = 0;
    for (int r = 0; r < std::ssize(loops_); ++r) {
      start(r, 0.0);
      settle(0.0);
    }
    while (!events_.empty()) {
      if (progress && ++num_events % kEventsBetween == 0) tell(progress);
      const Event event = events_.top();
      events_.pop();
      RankLoop& loop = loops_[event.rank];
      if (event.time_s != loop.next_s()) continue;  // the end has changed since
      told_[event.rank] = kNoEnd;
      loop.end_works(event.time_s);
      touch(event.rank);
      start(event.rank, event.time_s);
      settle(event.time_s);
    }
    std::vector<RankTimes> times;
    for (size_t r = 0; r < loops_.size(); ++r) {
      TOK_CHECK(loops_[r].is_finished(), "priced ranks wait for each other: rank {}:{}", r,
                loops_[r].describe_stuck());
      times.push_back(std::move(loops_[r].times));
    }
    return times;
  }

 private:
  struct Event {
    double time_s = 0.0;
    int rank = 0;

    // The queue's top is the greatest.
    bool operator<(const Event& other) const {
      return time_s != other.time_s ? time_s > other.time_s : rank > other.rank;
    }
  };

  void tell(const Progress& progress) const {
    size_t done = 0;
    size_t total = 0;
    for (const RankLoop& loop : loops_) {
      done += loop.num_done();
      total += loop.num_works();
    }
    progress("works ended", static_cast<int64_t>(done), static_cast<int64_t>(total));
  }

  void touch(int rank) {
    if (is_dirty_[rank] != 0) return;
    is_dirty_[rank] = 1;
    dirty_.push_back(rank);
  }

  // Begins the Works that can begin on a rank, and on ranks that these unblock.
  void start(int first, double now) {
    touch(first);
    to_start_.push_back(first);
    while (!to_start_.empty()) {
      const int rank = to_start_.back();
      to_start_.pop_back();
      RankLoop& loop = loops_[rank];
      for (int s = loop.startable(0); s >= 0;) {
        const Work work = loop.head(s);  // begin() may go on to the next
        if (work.meeting < 0) {
          loop.begin(s, work.seconds, now);
          // A point in time may unblock another stream.
          s = loop.startable(work.seconds == 0.0 ? 0 : static_cast<size_t>(s) + 1);
        } else {
          const bool is_here = meet(rank, s, work, now);
          s = loop.startable(is_here ? 0 : static_cast<size_t>(s) + 1);
        }
      }
    }
  }

  // Returns whether the Work began.
  bool meet(int rank, int stream, const Work& work, double now) {
    Meeting& meeting = meetings_[work.meeting];
    loops_[rank].arrive(stream, now);
    touch(rank);
    meeting.arrived.push_back({.rank = rank, .stream = stream});
    meeting.seconds = std::max(meeting.seconds, work.seconds);
    if (std::ssize(meeting.arrived) < sizes_[work.meeting]) return false;
    for (const Meeting::Member& member : meeting.arrived) {
      loops_[member.rank].begin(member.stream, meeting.seconds, now);
      touch(member.rank);
      if (meeting.seconds == 0.0 && member.rank != rank) to_start_.push_back(member.rank);
    }
    return true;
  }

  void settle(double now) {
    for (const int rank : dirty_) {
      RankLoop& loop = loops_[rank];
      loop.settle(now);
      is_dirty_[rank] = 0;
      double& told = told_[rank];
      if (loop.next_s() != kNoEnd && loop.next_s() != told)
        events_.push({.time_s = loop.next_s(), .rank = rank});
      told = loop.next_s();
    }
    dirty_.clear();
  }

  std::span<const int> sizes_;
  std::vector<RankLoop> loops_;
  std::vector<Meeting> meetings_;
  std::priority_queue<Event> events_;
  std::vector<double> told_;  // by rank: the end that the queue holds
  std::vector<int> dirty_;
  std::vector<uint8_t> is_dirty_;
  std::vector<int> to_start_;
};

}  // namespace

Slowdown slowdown_of(const Software& software) {
  return {.compute = software.compute_slowdown,
          .compute_beside_copy_engine = software.copy_engine_slowdown,
          .communication = software.collective_slowdown};
}

int RankWorks::add(Work work, std::span<const int> after) {
  work.first_wait = static_cast<int>(waits.size());
  work.num_waits = static_cast<int>(after.size());
  waits.insert(waits.end(), after.begin(), after.end());
  num_streams = std::max(num_streams, work.stream + 1);
  works.push_back(work);
  return static_cast<int>(works.size()) - 1;
}

std::vector<RankTimes> run_streams(std::span<const RankWorks> ranks, std::span<const int> meetings,
                                   const Slowdown& slowdown, const Progress& progress) {
  return Loop(ranks, meetings, slowdown).run(progress);
}

}  // namespace tokamak::price
