#include "tokamak/train/report/run_events.h"

#include <chrono>
#include <utility>

#include <fmt/chrono.h>

#include "tokamak/core/error.h"
#include "tokamak/train/report/metrics_file.h"

namespace tokamak {
namespace {

constexpr size_t kMostPending = 10'000;

OrderedJson to_json(int64_t step, const std::string& level, const std::string& text) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
          {"step", step},
          {"level", level},
          {"text", text}};
}

std::string to_line(const OrderedJson& event) {
  return event.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

void RunEvents::open(const std::filesystem::path& path, int64_t resumed_step) {
  const std::lock_guard lock(mutex_);
  make_way(path, resumed_step);
  step_ = resumed_step;
  file_.emplace(path, FileWriter::Mode::kAppend);
  for (OrderedJson& event : pending_) {
    event["step"] = resumed_step;
    write(to_line(event));
  }
  pending_.clear();
}

void RunEvents::add(const std::string& level, const std::string& text) {
  const std::lock_guard lock(mutex_);
  OrderedJson event = to_json(step_, level, text);
  if (file_) {
    write(to_line(event));
  } else if (pending_.size() < kMostPending) {
    pending_.push_back(std::move(event));
  }
}

void RunEvents::write(const std::string& lines) {
  try {
    file_->write(lines);
  } catch (const SystemError&) {  // the header says why
  }
}

}  // namespace tokamak
