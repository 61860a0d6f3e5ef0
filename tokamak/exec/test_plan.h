// Plans written by hand whose kernels are functions of a test.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/exec/memory.h"
#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak::testing {

// A backend with this machine's memory and a test's kernels: each task runs a function.
class TestBackend final : public Backend {
 public:
  std::map<const void*, Kernel> kernels;  // by op
  DeviceStreams* device = nullptr;

  Target target() const override { return {}; }

  std::unique_ptr<Allocation> allocate(int64_t bytes) override {
    return std::make_unique<Bytes>(bytes);
  }

  int64_t allocated_bytes() const override { return 0; }

  Kernel prepare(const OpRules&, const void* op, const KernelTypes&, std::string_view) override {
    return kernels.at(op);
  }

  DeviceStreams* streams() override { return device; }

  void upload(std::byte*, const std::byte*, int64_t) override {}

  void clear(std::byte*, int64_t) override {}

  void download(std::byte*, const std::byte*, int64_t) override {}

 private:
  struct Bytes final : Allocation {
    explicit Bytes(int64_t bytes) : all(static_cast<size_t>(bytes)) {}

    std::byte* data() const override { return const_cast<std::byte*>(all.data()); }

    int64_t bytes() const override { return std::ssize(all); }

    std::vector<std::byte> all;
  };
};

// A plan written by hand.
struct HandPlan {
  Plan plan;
  TestBackend backend;

  HandPlan() { plan.arena_bytes.fill(4096); }

  int segment(const std::string& name, bool is_background = false) {
    plan.segments.push_back(
        {.name = name, .runs = Segment::Runs::kPerMicrobatch, .is_background = is_background});
    return static_cast<int>(plan.segments.size()) - 1;
  }

  // `elements` floats from `begin` on.
  static Operand scratch(int64_t begin, int64_t elements = 1) {
    return {
        .offset = begin * 4, .type = {.dtype = DType::kF32, .dims = {elements}}, .strides = {1}};
  }

  static Operand state(int64_t begin) {
    Operand o = scratch(begin);
    o.arena = ArenaKind::kState;
    return o;
  }

  static Operand slot(int slot_class, int64_t begin = 0) {
    Operand o = scratch(begin);
    o.arena = ArenaKind::kSlot;
    o.slot_class = slot_class;
    return o;
  }

  Task& add(int segment, int stream, std::vector<Operand> in, std::vector<Operand> out,
            Kernel kernel) {
    auto op = std::make_shared<const Accumulate>();
    backend.kernels[op.get()] = std::move(kernel);
    auto& tasks = plan.segments[segment].tasks;
    tasks.push_back({.rules = &kRules<Accumulate>,
                     .op = op,
                     .variant = &kCpuReference,
                     .in = std::move(in),
                     .out = std::move(out),
                     .stream = stream});
    tasks.back().accumulate.resize(tasks.back().out.size());
    return tasks.back();
  }

  void item(int segment, int microbatch, std::vector<int> waits = {}) {
    plan.items.push_back({.segment = segment, .microbatch = microbatch, .waits = std::move(waits)});
  }

  Memory memory() {
    const Plan* plans[] = {&plan};
    return {backend, plans};
  }
};

// Two threads that meet, or give up after a while.
class Meeting {
 public:
  bool arrive() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return arrived_ == 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

inline float& first(const Tensor& t) {
  return *t.as<float>();
}

}  // namespace tokamak::testing
