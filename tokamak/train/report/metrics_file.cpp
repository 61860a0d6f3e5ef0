#include "tokamak/train/report/metrics_file.h"

#include <cmath>
#include <optional>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

void add_count(std::string& line, std::string_view key, int64_t value) {
  fmt::format_to(std::back_inserter(line), "{}\"{}\": {}", line.empty() ? "{" : ", ", key, value);
}

void add_number(std::string& line, std::string_view key, std::optional<double> value) {
  std::string text = value && std::isfinite(*value) ? fmt::format("{}", *value) : "null";
  // Some readers tell 1 from 1.0: a whole number is written as a float, too.
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  fmt::format_to(std::back_inserter(line), "{}\"{}\": {}", line.empty() ? "{" : ", ", key, text);
}

std::optional<int64_t> step_of(std::string_view line) {
  const Json object = Json::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

const std::filesystem::path& prepare(const std::filesystem::path& path, int64_t resumed_step) {
  make_folders(path.has_parent_path() ? path.parent_path() : ".");
  std::error_code code;
  make_way(path, resumed_step);
  if (std::filesystem::file_size(path, code) == 0 || code) return path;
  // A new file even where nothing is cut: a process that this run has superseded may still have a
  // line to write to the old one.
  write_file_atomic(path, cut_to_step(read_file(path), resumed_step));
  return path;
}

}  // namespace

void make_way(const std::filesystem::path& path, int64_t resumed_step) {
  std::error_code code;
  TOK_REQUIRE(!std::filesystem::is_fifo(path, code), "cannot write {}: not a regular file",
              path.string());
  if (resumed_step > 0 || std::filesystem::file_size(path, code) == 0 || code) return;
  std::filesystem::path previous = path;
  previous += ".previous";
  std::filesystem::rename(path, previous, code);
  TOK_REQUIRE(!code, "cannot move {} aside: {}", path.string(), code.message());
}

std::string to_json_line(const StepMetrics& m) {
  std::string line;
  add_count(line, "step", m.step);
  add_number(line, "loss", m.loss);
  add_number(line, "grad_norm", m.grad_norm);
  add_number(line, "lr", m.lr);
  add_count(line, "tokens_seen", m.tokens_seen);
  add_number(line, "tps", m.tps);
  add_number(line, "tflops", m.tflops);
  add_number(line, "mfu", m.mfu);
  add_number(line, "memory_gib", m.memory_gib);
  add_number(line, "step_time_s", m.step_time_s);
  add_number(line, "data_s", m.seconds.data);
  add_number(line, "forward_s", m.seconds.forward);
  add_number(line, "backward_s", m.seconds.backward);
  add_number(line, "exposed_comm_s", m.seconds.exposed_comm);
  add_number(line, "optimizer_s", m.seconds.optimizer);
  add_number(line, "checkpoint_s", m.seconds.checkpoint);
  add_number(line, "fp8_saturated_sites", m.saturated_sites);
  add_count(line, "failed_saves", m.failed_saves);
  add_count(line, "world_size", m.world_size);
  if (!m.job.empty()) line += fmt::format(", \"job\": {}", Json(m.job).dump());
  return line + "}\n";
}

std::string to_json_line(const ValidationMetrics& m) {
  std::string line;
  add_count(line, "step", m.step);
  add_number(line, "loss", m.loss);
  add_number(line, "tps", m.tps);
  add_number(line, "memory_gib", m.memory_gib);
  add_number(line, "time_s", m.time_s);
  add_count(line, "world_size", m.world_size);
  return line + "}\n";
}

std::string cut_to_step(std::string_view text, int64_t last_step) {
  std::string kept;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(0, end);
    const auto step = step_of(line);
    if (step && *step <= last_step) kept.append(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return kept;
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t resumed_step)
    : path_(std::move(path)), file_(prepare(path_, resumed_step), FileWriter::Mode::kAppend) {}

void MetricsFile::append_lines(std::string_view lines) {
  constexpr size_t kMostPending = size_t{1} << 20;
  if (pending_.size() < kMostPending) pending_ += lines;
  std::error_code code;
  const auto size = std::filesystem::file_size(path_, code);
  try {
    file_.write(pending_);
    pending_.clear();
  } catch (const SystemError&) {
    if (!code) std::filesystem::resize_file(path_, size, code);
    throw;
  }
}

}  // namespace tokamak
