#include "tokamak/train/report/run_history.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, kNumMetrics> kKeys = {
    "loss",       "grad_norm",      "lr",          "tps",         "tflops",
    "mfu",        "memory_gib",     "step_time_s", "data_s",      "forward_s",
    "backward_s", "exposed_comm_s", "optimizer_s", "checkpoint_s"};

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double number_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : kUnknown;
}

int64_t count_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() ? at->get<int64_t>() : 0;
}

std::string text_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// Calls `use` with each line's object; returns the number of lines that are not objects.
template <class Use>
int64_t for_each_object(const fs::path& path, const Use& use) {
  const MappedFile file(path);
  int64_t num_unread = 0;
  for (std::string_view text = file.text(); !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    const Json object = Json::parse(text.substr(0, end), nullptr, false);
    if (end > 0) object.is_object() ? use(object) : static_cast<void>(++num_unread);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return num_unread;
}

std::string plural(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void read_metrics(const fs::path& path, RunHistory& run) {
  std::map<int64_t, LoggedStep> by_step;  // of lines with the same step the last one counts
  int64_t num_foreign = 0;
  int64_t num_back = 0;
  int64_t last = -1;
  const int64_t num_unread = for_each_object(path, [&](const Json& object) {
    const auto step = object.find("step");
    if (step == object.end() || !step->is_number_integer() || step->get<int64_t>() < 0) {
      ++num_foreign;
      return;
    }
    LoggedStep logged{.step = step->get<int64_t>(), .tokens_seen = count_in(object, "tokens_seen")};
    for (size_t i = 0; i < kNumMetrics; ++i) logged.values[i] = number_in(object, kKeys[i]);
    if (logged.step <= last) ++num_back;
    last = logged.step;
    by_step[logged.step] = logged;
    run.world_size = count_in(object, "world_size");
    run.job = text_in(object, "job");
  });
  if (num_unread > 0)
    run.notes.push_back(
        fmt::format("{} of metrics.jsonl could not be read", plural(num_unread, "line")));
  if (num_foreign > 0)
    run.notes.push_back(
        fmt::format("{} of metrics.jsonl have no step", plural(num_foreign, "line")));
  if (num_back > 0)
    run.notes.push_back(fmt::format(
        "steps go back {} in metrics.jsonl, as if several runs had written it; the later line of a "
        "step is shown",
        plural(num_back, "time")));
  TOK_REQUIRE(!by_step.empty(), "{}: no step in it{}", path.string(),
              num_unread + num_foreign > 0 ? ", and lines that are no metrics" : " yet");
  for (const auto& [step, logged] : by_step) run.steps.push_back(logged);
}

void read_validation(const fs::path& path, RunHistory& run) {
  if (!path_exists(path)) return;
  for_each_object(path, [&](const Json& object) {
    const double loss = number_in(object, "loss");
    run.validation.emplace_back(count_in(object, "step"), loss);
  });
  std::ranges::stable_sort(run.validation,
                           [](const auto& a, const auto& b) { return a.first < b.first; });
}

// Returns the number that follows `before`, if the text has that.
std::optional<int64_t> number_after(std::string_view text, std::string_view before) {
  const size_t at = text.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const char* begin = text.data() + at + before.size();
  const auto [end, code] = std::from_chars(begin, text.data() + text.size(), value);
  if (code != std::errc() || end == begin) return std::nullopt;
  return value;
}

// Returns nothing for what is no event, such as the size of the model.
std::optional<RunEvent> event_of(std::string_view text, bool is_warning, int64_t step) {
  using enum RunEventKind;
  const auto event = [&](RunEventKind kind, std::optional<int64_t> at = std::nullopt) {
    return RunEvent{.kind = kind, .step = at.value_or(step), .text = std::string(text)};
  };
  if (text.starts_with("Training starts at step ")) {
    const int64_t first = number_after(text, "at step ").value_or(1);
    return event(first > 1 ? kRestart : kStart, first);
  }
  if (text.starts_with("Saved the checkpoint ")) return event(kSave, number_after(text, "/step-"));
  if (text.starts_with("The checkpoint of step ") || text.starts_with("Step "))
    return event(kFailedSave, number_after(text, text.starts_with("Step ") ? "Step " : "of step "));
  if (text.starts_with("Training completed") || text.starts_with("Stopped by ")) return event(kEnd);
  if (!is_warning) return std::nullopt;
  if (text.starts_with("step ")) return event(kBadStep, number_after(text, "step "));
  return event(kWarning);
}

void read_events(const fs::path& path, RunHistory& run) {
  if (!path_exists(path)) return;
  const int64_t num_unread = for_each_object(path, [&](const Json& object) {
    auto event = event_of(text_in(object, "text"), text_in(object, "level") == "WARNING",
                          count_in(object, "step"));
    if (!event) return;
    event->time = text_in(object, "time");
    run.events.push_back(std::move(*event));
  });
  if (num_unread > 0)
    run.notes.push_back(
        fmt::format("{} of events.jsonl could not be read", plural(num_unread, "line")));
}

}  // namespace

std::string_view name_of(RunEventKind kind) {
  constexpr std::array<std::string_view, kNumRunEventKinds> kNames = {
      "start", "restart", "save", "no save", "bad step", "warning", "end"};
  return kNames[static_cast<size_t>(kind)];
}

bool is_run_folder(const fs::path& folder) {
  return path_exists(folder / "metrics.jsonl");
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  if (is_run_folder(folder)) return {folder};
  TOK_REQUIRE(is_folder(folder), "{}: wanted the folder of a run (job.dump_folder), {}",
              folder.string(), path_exists(folder) ? "got a file" : "it does not exist");
  std::vector<fs::path> runs;
  for (const fs::path& inside : list_folder(folder)) {
    if (is_folder(inside) && is_run_folder(inside)) runs.push_back(inside);
  }
  TOK_REQUIRE(!runs.empty(),
              "{}: no metrics.jsonl in it or in a folder of it; wanted the folder of a run "
              "(job.dump_folder) after its first step",
              folder.string());
  return runs;
}

RunHistory read_run(const fs::path& folder) {
  RunHistory run;
  const fs::path normal = fs::absolute(folder).lexically_normal();
  run.name = (normal.has_filename() ? normal : normal.parent_path()).filename().string();
  read_metrics(folder / "metrics.jsonl", run);
  read_validation(folder / "validation.jsonl", run);
  read_events(folder / "events.jsonl", run);
  return run;
}

}  // namespace tokamak
