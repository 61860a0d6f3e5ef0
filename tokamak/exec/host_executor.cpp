#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "tokamak/core/error.h"
#include "tokamak/core/timing.h"
#include "tokamak/exec/bound_plan.h"
#include "tokamak/exec/item_cursor.h"
#include "tokamak/exec/run_loop.h"
#include "tokamak/exec/stream_queue.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

// Background items that may be in flight on one stream; the loop waits rather than add more.
constexpr size_t kQueueCapacity = 64;

// How long other streams may take to see a failure before the whole job is aborted.
constexpr std::chrono::milliseconds kPatience{1000};

// Ends a stream's work because another one has failed.
struct Stopped {};

ExitCode exit_code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return ExitCode::kUserError;
  } catch (const Diverged&) {
    return ExitCode::kDiverged;
  } catch (const SystemError&) {
    return ExitCode::kTryAgain;
  } catch (...) {
    return ExitCode::kBug;
  }
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

// Measures stream 0's seconds by phase, and exposed communication apart.
class Stopwatch {
 public:
  PhaseTimes* phases = nullptr;
  double exposed_s = 0.0;

  void enter(Phase phase) {
    if (phases == nullptr || (is_running_ && phase == phase_)) return;
    stop();
    phase_ = phase;
    begin_s_ = now_s();
    is_running_ = true;
  }

  void stop() {
    if (is_running_ && phases != nullptr) (*phases)[phase_] += now_s() - begin_s_;
    is_running_ = false;
  }

  template <class F>
  void expose(F&& work) {
    const double begin = now_s();
    work();
    const double took = now_s() - begin;
    exposed_s += took;
    begin_s_ += took;
  }

 private:
  Phase phase_ = Phase::kUnshard;
  double begin_s_ = 0.0;
  bool is_running_ = false;
};

class HostExecutor final : public RunLoop {
 public:
  HostExecutor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups,
               World* world)
      : plan_(plan),
        bound_(plan, memory, groups),
        world_(world),
        progress_(bound_.num_streams()),
        spans_by_stream_(bound_.num_streams()),
        issued_(bound_.num_streams(), 0),
        item_ends_(plan.items.size(), std::vector<int64_t>(bound_.num_streams(), 0)),
        cursor_(plan) {
    TOK_CHECK(bound_.segments().size() == plan.segments.size());
    for (const BoundSegment& segment : bound_.segments())
      TOK_CHECK(!segment.is_background || !plan.items.empty(),
                "a segment runs in the background of no schedule");
    work_.issued = issued_;
    for (size_t s = 1; s < bound_.num_streams(); ++s)
      queues_.push_back(std::make_unique<StreamQueue>(kQueueCapacity));
    for (size_t s = 1; s < bound_.num_streams(); ++s)
      threads_.emplace_back([this, s, &backend = memory.backend()] { serve(s, backend); });
  }

  HostExecutor(const HostExecutor&) = delete;
  HostExecutor& operator=(const HostExecutor&) = delete;

  ~HostExecutor() override {
    if (!is_idle()) fail(std::make_exception_ptr(SystemError("a step was left in its middle")));
    if (error_ != nullptr) stop_streams();
    for (const auto& queue : queues_) queue->close();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const ScheduleItem& item) override {
    TOK_CHECK(!has_thrown_, "an executor runs on after an error");
    try {
      // Tasks that outlived their item may have failed since the last item.
      if (has_failed_) throw Stopped{};
      run_item(item);
      return;
    } catch (const Stopped&) {
    } catch (...) {
      fail(std::current_exception());
    }
    has_thrown_ = true;
    stop_streams();
    std::rethrow_exception(error());
  }

  void settle() override {}

  void time_phases(PhaseTimes* seconds) override { watch_.phases = seconds; }

  double exposed_comm_s() const override { return watch_.exposed_s; }

  void trace(std::vector<TaskSpan>* spans) override {
    collect_spans();
    spans_ = spans;
  }

 private:
  void run_item(const ScheduleItem& item) {
    const BoundSegment& segment = bound_.segments()[item.segment];
    work_.segment = &segment;
    work_.binding = &segment.binding(item);
    work_.is_first = item.is_first;
    work_.is_last = item.is_last;
    work_.is_traced = spans_ != nullptr;
    work_.issued = issued_;
    work_.waits.clear();
    cursor_.advance_to(item);
    find_waits();
    for (size_t s = 0; s < issued_.size(); ++s) issued_[s] += std::ssize(segment.by_stream[s]);
    if (cursor_.has_items()) item_ends_[cursor_.index()] = issued_;
    if (!segment.is_background) {
      for (const StreamPoint& point : work_.waits) wait(point);
      work_.waits.clear();
    }
    submit(segment);
    if (!segment.is_background) {
      work_.stream = 0;
      run_stream(work_);
      for (size_t s = 1; s < issued_.size(); ++s) {
        if (!segment.by_stream[s].empty() && !segment.outlives[s])
          wait({.stream = s, .count = issued_[s]});
      }
    }
    watch_.stop();
    if (cursor_.ends_step()) {
      for (size_t s = 1; s < issued_.size(); ++s) wait({.stream = s, .count = issued_[s]});
    }
    const bool leaves_work = segment.is_background || std::ranges::count(segment.outlives, true);
    is_in_background_ = !cursor_.ends_step() && (is_in_background_ || leaves_work);
    if (!is_in_background_) collect_spans();
  }

  // Finds what the item waits for.
  void find_waits() {
    for (const int w : cursor_.waits()) {
      const auto& before = bound_.segments()[plan_.items[w].segment];
      for (size_t s = 1; s < issued_.size(); ++s) {
        if (!before.by_stream[s].empty())
          work_.waits.push_back({.stream = s, .count = item_ends_[w][s]});
      }
    }
  }

  void submit(const BoundSegment& segment) {
    for (size_t s = 1; s < issued_.size(); ++s) {
      if (segment.by_stream[s].empty()) continue;
      work_.stream = s;
      queues_[s - 1]->push(work_);
    }
  }

  // Makes stream 0 wait for another stream.
  void wait(const StreamPoint& point) {
    watch_.expose([&] { wait_for(point); });
  }

  void wait_for(const StreamPoint& point) {
    if (!progress_[point.stream].wait(point.count)) throw Stopped{};
  }

  void run_stream(const StreamWork& work) {
    const size_t later = work.is_first ? 0 : 1;
    const bool is_main = work.stream == 0;
    const auto& list = work.segment->by_stream[work.stream];
    if (!is_main) {
      for (const StreamPoint& point : work.waits) wait_for(point);
    }
    for (const size_t t : list) {
      const BoundTask& bound = work.segment->tasks[t];
      if (work.is_last || !bound.last_microbatch_only) {
        if (is_main) watch_.enter(bound.phase);
        for (const StreamPoint& w : bound.waits) {
          const StreamPoint point{.stream = w.stream, .count = work.issued[w.stream] + w.count};
          is_main ? wait(point) : wait_for(point);
        }
        const KernelArgs& args = work.binding->calls[t]->args[later];
        if (is_main && bound.is_communication) {
          watch_.expose([&] { run_task(work, bound, args); });
        } else {
          run_task(work, bound, args);
        }
      }
      if (bound.is_awaited) progress_[work.stream].reach(work.issued[work.stream] + bound.count);
    }
    if (progress_.size() > 1)
      progress_[work.stream].reach(work.issued[work.stream] + std::ssize(list));
  }

  void run_task(const StreamWork& work, const BoundTask& bound, const KernelArgs& args) {
    if (!work.is_traced) {
      bound.kernel(args);
      return;
    }
    TaskSpan span{.task = bound.task, .begin_s = now_s()};
    bound.kernel(args);
    span.end_s = now_s();
    spans_by_stream_[work.stream].push_back(span);
  }

  // Runs on the thread of a stream other than 0.
  void serve(size_t stream, Backend& backend) {
    backend.enter_stream_thread();
    StreamQueue& queue = *queues_[stream - 1];
    while (const StreamWork* work = queue.front()) {
      try {
        if (!has_failed_) run_stream(*work);
      } catch (const Stopped&) {
      } catch (...) {
        fail(std::current_exception());
      }
      queue.pop();
    }
  }

  // Keeps the first error and wakes all waiters.
  void fail(const std::exception_ptr& error) {
    {
      const std::lock_guard lock(mutex_);
      if (error_ == nullptr) error_ = error;
      has_failed_ = true;
    }
    for (Progress& progress : progress_) progress.fail();
  }

  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

  bool is_idle() const {
    for (size_t s = 1; s < issued_.size(); ++s) {
      if (!progress_[s].has(issued_[s])) return false;
    }
    return true;
  }

  // After a failure, a stream must not wait for ever for peers that this rank will never join.
  void stop_streams() {
    bool stopped = true;
    for (const auto& queue : queues_) stopped = queue->wait_idle(kPatience) && stopped;
    if (stopped || world_ == nullptr) return;
    try {
      world_->abort(static_cast<int>(exit_code_of(error())), text_of(error()));
    } catch (const SystemError&) {
      // Where ranks are threads of one process, abort throws; the streams wake with this error.
    }
  }

  // REQUIRES: no other stream runs.
  void collect_spans() {
    for (std::vector<TaskSpan>& list : spans_by_stream_) {
      if (spans_ != nullptr) spans_->insert(spans_->end(), list.begin(), list.end());
      list.clear();
    }
  }

  const Plan& plan_;
  BoundPlan bound_;
  World* world_;
  Stopwatch watch_;
  std::vector<Progress> progress_;
  std::vector<std::vector<TaskSpan>> spans_by_stream_;
  std::vector<TaskSpan>* spans_ = nullptr;
  StreamWork work_;
  std::vector<int64_t> issued_;                  // tasks by stream, since the beginning
  std::vector<std::vector<int64_t>> item_ends_;  // the same at each item's end
  ItemCursor cursor_;
  bool is_in_background_ = false;
  std::vector<std::unique_ptr<StreamQueue>> queues_;
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> has_failed_ = false;
  bool has_thrown_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<RunLoop> make_host_loop(const Plan& plan, const Memory& memory,
                                        std::span<Communicator* const> groups, World* world) {
  return std::make_unique<HostExecutor>(plan, memory, groups, world);
}

}  // namespace tokamak
