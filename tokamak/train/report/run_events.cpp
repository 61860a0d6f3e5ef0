#include "tokamak/train/report/run_events.h"

#include <chrono>

#include <fmt/chrono.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

constexpr size_t kMostPending = size_t{1} << 20;

std::string to_line(int64_t step, const std::string& level, const std::string& text) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const OrderedJson line{{"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
                         {"step", step},
                         {"level", level},
                         {"text", text}};
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

void RunEvents::open(const std::filesystem::path& path, int64_t resumed_step) {
  const std::lock_guard lock(mutex_);
  std::error_code code;
  TOK_REQUIRE(!std::filesystem::is_fifo(path, code), "cannot write {}: not a regular file",
              path.string());
  if (resumed_step == 0 && std::filesystem::file_size(path, code) > 0 && !code) {
    std::filesystem::path previous = path;
    previous += ".previous";
    std::filesystem::rename(path, previous, code);
    TOK_REQUIRE(!code, "cannot move {} aside: {}", path.string(), code.message());
  }
  step_ = resumed_step;
  file_.emplace(path, FileWriter::Mode::kAppend);
  write(pending_);
  pending_.clear();
}

void RunEvents::add(const std::string& level, const std::string& text) {
  const std::lock_guard lock(mutex_);
  const std::string line = to_line(step_, level, text);
  if (file_) {
    write(line);
  } else if (pending_.size() < kMostPending) {
    pending_ += line;
  }
}

void RunEvents::write(const std::string& lines) {
  try {
    file_->write(lines);
  } catch (const SystemError&) {  // the header says why
  }
}

}  // namespace tokamak
