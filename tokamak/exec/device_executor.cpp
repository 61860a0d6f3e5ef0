#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "tokamak/core/error.h"
#include "tokamak/core/timing.h"
#include "tokamak/exec/bound_plan.h"
#include "tokamak/exec/item_cursor.h"
#include "tokamak/exec/run_loop.h"
#include "tokamak/exec/stretches.h"

namespace tokamak {
namespace {

// Tasks of one name run the same code: an op's attributes may choose among kernels.
std::string kernel_name(const Task& task) {
  std::string name = fmt::format("{}/{} {}", task.rules->name, task.variant->name,
                                 task.rules->describe(task.op.get()));
  for (const auto* list : {&task.in, &task.out}) {
    for (const Operand& o : *list) name += " " + to_string(o.type);
  }
  return name;
}

// Takes times on the device's streams and reads them some items later.
class DeviceClock {
 public:
  explicit DeviceClock(DeviceStreams& streams) : streams_(streams) {}

  PhaseTimes* phases = nullptr;
  std::vector<TaskSpan>* spans = nullptr;
  double exposed_s = 0.0;

  void enter(Phase phase) {
    if (phases == nullptr || phase_ == phase) return;
    stop();
    phase_ = phase;
    phase_begin_ = take();
    streams_.record(phase_begin_, streams_.stream(0));
  }

  void stop() {
    if (!phase_) return;
    const DeviceEvent end = take();
    streams_.record(end, streams_.stream(0));
    pending_.push_back({.begin = phase_begin_, .end = end, .phase = *phase_});
    phase_.reset();
  }

  template <class F>
  void expose(F&& work) {
    if (phases == nullptr) return work();
    Interval interval{.begin = take(), .end = take(), .phase = phase_, .is_exposed = true};
    streams_.record(interval.begin, streams_.stream(0));
    work();
    streams_.record(interval.end, streams_.stream(0));
    pending_.push_back(interval);
  }

  template <class F>
  void span(const Task* task, DeviceStream stream, F&& work) {
    if (spans == nullptr) return work();
    Interval interval{.begin = take(), .end = take(), .task = task};
    streams_.record(interval.begin, stream);
    work();
    streams_.record(interval.end, stream);
    pending_.push_back(interval);
  }

  // Reads the intervals that have ended by now; with `all`, waits for the rest.
  void read(bool all) {
    while (!pending_.empty()) {
      const Interval interval = pending_.front();
      if (all) streams_.synchronize(interval.end);
      if (!all && !streams_.has_happened(interval.end)) return;
      pending_.pop_front();
      add(interval);
      give_back(interval);
    }
  }

  // From here on device times are reported as times of the host's clock.
  void set_origin() {
    if (origin_ == nullptr) origin_ = streams_.make_event(true);
    streams_.record(origin_, streams_.stream(0));
    streams_.synchronize(origin_);
    origin_s_ = now_s();
  }

 private:
  struct Interval {
    DeviceEvent begin = nullptr;
    DeviceEvent end = nullptr;
    std::optional<Phase> phase;
    bool is_exposed = false;
    const Task* task = nullptr;
  };

  void add(const Interval& interval) {
    if (interval.task != nullptr) {
      if (spans == nullptr) return;
      spans->push_back({.task = interval.task,
                        .begin_s = origin_s_ + streams_.seconds_between(origin_, interval.begin),
                        .end_s = origin_s_ + streams_.seconds_between(origin_, interval.end)});
      return;
    }
    const double seconds = streams_.seconds_between(interval.begin, interval.end);
    if (interval.is_exposed) exposed_s += seconds;
    if (interval.phase && phases != nullptr)
      (*phases)[*interval.phase] += interval.is_exposed ? -seconds : seconds;
  }

  void give_back(const Interval& interval) {
    free_.push_back(interval.begin);
    free_.push_back(interval.end);
  }

  DeviceEvent take() {
    if (free_.empty()) return streams_.make_event(true);
    const DeviceEvent event = free_.back();
    free_.pop_back();
    return event;
  }

  DeviceStreams& streams_;
  std::deque<Interval> pending_;
  std::vector<DeviceEvent> free_;
  std::optional<Phase> phase_;
  DeviceEvent phase_begin_ = nullptr;
  DeviceEvent origin_ = nullptr;
  double origin_s_ = 0.0;
};

class DeviceExecutor final : public RunLoop {
 public:
  DeviceExecutor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups)
      : plan_(plan),
        memory_(memory),
        streams_(*memory.backend().streams()),
        bound_(plan, memory, groups),
        clock_(streams_),
        begin_(streams_.make_event(false)),
        cursor_(plan) {
    for (size_t s = 0; s < bound_.num_streams(); ++s)
      stream_ends_.push_back(streams_.make_event(false));
    for (const BoundSegment& segment : bound_.segments()) {
      auto& events = task_ends_.emplace_back(segment.by_stream.size());
      for (size_t s = 0; s < segment.by_stream.size(); ++s) {
        for (const size_t t : segment.by_stream[s])
          events[s].push_back(segment.tasks[t].is_awaited ? streams_.make_event(false) : nullptr);
      }
      replays_.emplace_back(segment);
    }
    for (const ScheduleItem& item : plan.items) {
      auto& ends = background_ends_.emplace_back(bound_.num_streams(), nullptr);
      const BoundSegment& segment = bound_.segments()[item.segment];
      for (size_t s = 1; s < ends.size(); ++s) {
        if (leaves_work(segment, s) && (segment.is_background || item.is_last))
          ends[s] = streams_.make_event(false);
      }
    }
  }

  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  // Memory that work in flight uses must not be freed.
  ~DeviceExecutor() override {
    try {
      settle();
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it was reported where it arose
    }
  }

  void warm_up(std::span<const ScheduleItem> items) override {
    std::set<std::string> seen;
    for (const BoundSegment& segment : bound_.segments()) {
      for (size_t t = 0; t < segment.tasks.size(); ++t) {
        const BoundTask& bound = segment.tasks[t];
        if (bound.is_communication || !seen.insert(kernel_name(*bound.task)).second) continue;
        for (const KernelArgs& args : segment.bindings[0].calls[t]->args) bound.kernel(args);
      }
    }
    if (plan_.device_graphs) {
      for (const ScheduleItem& item : items) record(item);
    }
    settle();
    memory_.clear();
  }

  void run(const ScheduleItem& item) override {
    const BoundSegment& segment = bound_.segments()[item.segment];
    cursor_.advance_to(item);
    for (size_t s = 0; s < bound_.num_streams(); ++s) {
      if (s == 0 ? !segment.is_background : uses(segment, s)) await_background(s);
    }
    begin(segment);
    issue(segment, item);
    end(segment);
    clock_.read(false);
  }

  void settle() override {
    for (size_t s = 0; s < bound_.num_streams(); ++s) {
      streams_.record(stream_ends_[s], streams_.stream(s));
      streams_.synchronize(stream_ends_[s]);
    }
    clock_.read(true);
  }

  void time_phases(PhaseTimes* seconds) override { clock_.phases = seconds; }

  double exposed_comm_s() const override { return clock_.exposed_s; }

  void trace(std::vector<TaskSpan>* spans) override {
    if (clock_.spans != nullptr) settle();
    if (spans != nullptr) clock_.set_origin();
    clock_.spans = spans;
  }

 private:
  static bool uses(const BoundSegment& segment, size_t stream) {
    return !segment.by_stream[stream].empty();
  }

  // Whether the stream's tasks may still run after the item's end.
  static bool leaves_work(const BoundSegment& segment, size_t stream) {
    return uses(segment, stream) && (segment.is_background || segment.outlives[stream]);
  }

  // Waits for the background and outliving tasks of the items that must have ended.
  void await_background(size_t stream) {
    for (const int w : cursor_.waits()) {
      for (const DeviceEvent event : background_ends_[w]) {
        if (event == nullptr) continue;
        const auto wait = [&] { streams_.wait(streams_.stream(stream), event); };
        stream == 0 ? clock_.expose(wait) : wait();
      }
    }
  }

  // Other streams begin after all earlier work of stream 0: earlier items have ended there.
  void begin(const BoundSegment& segment) {
    bool is_recorded = false;
    for (size_t s = 1; s < bound_.num_streams(); ++s) {
      if (!uses(segment, s)) continue;
      if (!is_recorded) streams_.record(begin_, streams_.stream(0));
      is_recorded = true;
      streams_.wait(streams_.stream(s), begin_);
    }
  }

  void issue(const BoundSegment& segment, const ScheduleItem& item) {
    const BoundSegment::Binding& binding = segment.binding(item);
    Replays& replays = replays_[item.segment];
    for (size_t k = 0; k < replays.stretches().size(); ++k) {
      const Stretch stretch = replays.stretches()[k];
      // Spans are taken around each task, so that nothing is replayed then.
      const Replays::Recording* made =
          clock_.spans == nullptr ? replays.find(k, binding, item) : nullptr;
      if (made == nullptr || *made == nullptr) {
        for (size_t t = stretch.begin; t < stretch.end; ++t) issue_task(segment, binding, item, t);
      } else {
        issue_replay(segment, item, stretch, **made);
      }
    }
  }

  void record(const ScheduleItem& item) {
    const BoundSegment& segment = bound_.segments()[item.segment];
    const BoundSegment::Binding& binding = segment.binding(item);
    Replays& replays = replays_[item.segment];
    for (size_t k = 0; k < replays.stretches().size(); ++k) {
      Replays::Recording* recording = replays.find(k, binding, item);
      if (recording == nullptr || *recording != nullptr) continue;
      const Stretch stretch = replays.stretches()[k];
      *recording = streams_.capture(streams_.stream(0), [&] {
        for (size_t t = stretch.begin; t < stretch.end; ++t) {
          const BoundTask& bound = segment.tasks[t];
          if (runs(bound, item)) bound.kernel(args_of(binding, item, t));
        }
      });
    }
  }

  static bool runs(const BoundTask& task, const ScheduleItem& item) {
    return item.is_last || !task.last_microbatch_only;
  }

  static const KernelArgs& args_of(const BoundSegment::Binding& binding, const ScheduleItem& item,
                                   size_t t) {
    return binding.calls[t]->args[item.is_first ? 0 : 1];
  }

  void issue_task(const BoundSegment& segment, const BoundSegment::Binding& binding,
                  const ScheduleItem& item, size_t t) {
    const BoundTask& bound = segment.tasks[t];
    const DeviceStream stream = streams_.stream(bound.stream);
    if (runs(bound, item)) {
      if (bound.stream == 0) clock_.enter(bound.phase);
      await_tasks(bound, item);
      const auto run = [&] {
        clock_.span(bound.task, stream, [&] { bound.kernel(args_of(binding, item, t)); });
      };
      bound.stream == 0 && bound.is_communication ? clock_.expose(run) : run();
    }
    tell_end(bound, item);
  }

  void issue_replay(const BoundSegment& segment, const ScheduleItem& item, const Stretch& stretch,
                    DeviceGraph& graph) {
    const BoundTask& first = segment.tasks[stretch.begin];
    clock_.enter(first.phase);
    if (runs(first, item)) await_tasks(first, item);
    graph.launch(streams_.stream(0));
    tell_end(segment.tasks[stretch.end - 1], item);
  }

  void await_tasks(const BoundTask& bound, const ScheduleItem& item) {
    for (const StreamPoint& point : bound.waits) {
      const auto wait = [&] { streams_.wait(streams_.stream(bound.stream), end_of(item, point)); };
      bound.stream == 0 ? clock_.expose(wait) : wait();
    }
  }

  void tell_end(const BoundTask& bound, const ScheduleItem& item) {
    if (!bound.is_awaited) return;
    streams_.record(end_of(item, {.stream = bound.stream, .count = bound.count}),
                    streams_.stream(bound.stream));
  }

  DeviceEvent end_of(const ScheduleItem& item, const StreamPoint& point) const {
    return task_ends_[item.segment][point.stream][static_cast<size_t>(point.count) - 1];
  }

  void end(const BoundSegment& segment) {
    clock_.stop();
    for (size_t s = 1; s < bound_.num_streams(); ++s) {
      if (!uses(segment, s)) continue;
      if (!leaves_work(segment, s)) {
        join(s);
      } else if (const DeviceEvent end = background_ends_[cursor_.index()][s]) {
        streams_.record(end, streams_.stream(s));
      }
    }
    if (cursor_.ends_step()) {
      for (size_t s = 1; s < bound_.num_streams(); ++s) join(s);
    }
  }

  // Makes stream 0 continue after all work of stream `s`.
  void join(size_t s) {
    streams_.record(stream_ends_[s], streams_.stream(s));
    clock_.expose([&] { streams_.wait(streams_.stream(0), stream_ends_[s]); });
  }

  const Plan& plan_;
  const Memory& memory_;
  DeviceStreams& streams_;
  BoundPlan bound_;
  DeviceClock clock_;
  DeviceEvent begin_;
  std::vector<DeviceEvent> stream_ends_;
  std::vector<std::vector<std::vector<DeviceEvent>>> task_ends_;  // by segment, stream, place
  std::vector<std::vector<DeviceEvent>> background_ends_;  // by item, stream; null where joined
  std::vector<Replays> replays_;                           // by segment
  ItemCursor cursor_;
};

}  // namespace

std::unique_ptr<RunLoop> make_device_loop(const Plan& plan, const Memory& memory,
                                          std::span<Communicator* const> groups) {
  return std::make_unique<DeviceExecutor>(plan, memory, groups);
}

}  // namespace tokamak
