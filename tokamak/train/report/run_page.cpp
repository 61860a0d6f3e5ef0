#include "tokamak/train/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "tokamak/core/page.h"

namespace tokamak {
namespace {

// Together they bound the page: about 16 bytes a point, 60 of a mark, 600 of an event.
constexpr size_t kMostPoints = 24'000;
constexpr size_t kMostMarks = 600;
constexpr size_t kMostEvents = 400;
constexpr size_t kMostWords = 240;  // of an event's text, a name, a note
constexpr size_t kMostName = 80;    // in a legend

constexpr std::array<int, kNumRunEventKinds> kEventColors = {0, 0, 1, 2, kRed, 2, kGrey};

std::string clipped(const std::string& words, size_t most = kMostWords) {
  return words.size() <= most ? words : words.substr(0, most) + "...";
}

// Returns the finite values of a metric, sorted.
std::vector<double> sorted_values(const RunHistory& run, Metric metric) {
  std::vector<double> values;
  for (const LoggedStep& s : run.steps) {
    if (std::isfinite(s[metric])) values.push_back(s[metric]);
  }
  std::ranges::sort(values);
  return values;
}

// Returns the value at this share of the sorted values, or not a number.
double quantile(const RunHistory& run, Metric metric, double share) {
  const auto values = sorted_values(run, metric);
  if (values.empty()) return NAN;
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// The mean of a metric by steps: a line is the mean of the steps since the one before.
double mean_of(const RunHistory& run, Metric metric) {
  double sum = 0.0;
  double steps = 0.0;
  int64_t before = 0;
  for (const LoggedStep& s : run.steps) {
    const auto weight = static_cast<double>(s.step - before);
    before = s.step;
    if (!std::isfinite(s[metric])) continue;
    sum += weight * s[metric];
    steps += weight;
  }
  return steps > 0.0 ? sum / steps : 0.0;
}

// Returns a run's events with the saves between two others as one.
std::vector<RunEvent> with_saves_joined(const RunHistory& run) {
  std::vector<RunEvent> joined;
  size_t num_saves = 0;
  int64_t first = 0;
  for (const RunEvent& event : run.events) {
    num_saves = event.kind == RunEventKind::kSave ? num_saves + 1 : 0;
    if (num_saves <= 1) {
      joined.push_back(event);
      first = event.step;
      continue;
    }
    joined.back() = event;
    joined.back().text += fmt::format("; {} saves since step {}", num_saves, first);
  }
  return joined;
}

// Returns at most `most` events of a run in their order: saves are left out first, then late ones.
std::vector<const RunEvent*> chosen_events(std::span<const RunEvent> events, size_t most) {
  std::vector<const RunEvent*> chosen;
  for (const bool saves : {false, true}) {
    for (const RunEvent& event : events) {
      if ((event.kind == RunEventKind::kSave) == saves && chosen.size() < most)
        chosen.push_back(&event);
    }
  }
  std::ranges::sort(chosen);  // all are elements of one vector
  return chosen;
}

class Page {
 public:
  explicit Page(std::span<const RunHistory> runs) : runs_(runs) {
    most_points_ = std::max<size_t>(kMostPoints / (8 * runs.size()), 40);
  }

  OrderedJson blocks() const {
    OrderedJson blocks = overview();
    blocks.push_back(
        {{"charts",
          {loss(),
           metric("Gradient norm", "before clipping", Metric::kGradNorm, {{"log_above", 10}}),
           metric("Learning rate", "", Metric::kLr, {{"min", 0}}),
           with_marks(metric("Tokens per second", "and device", Metric::kTps, {{"min", 0}})),
           metric("MFU", "percent of the device's peak", Metric::kMfu, {{"min", 0}}),
           metric("Memory", "GiB, peak", Metric::kMemory, {{"min", 0}}), step_times(), phases()}}});
    for (OrderedJson& block : events()) blocks.push_back(std::move(block));
    return blocks;
  }

 private:
  OrderedJson chart(std::string_view title, std::string_view more, OrderedJson y) const {
    return {{"title", title},
            {"more", more},
            {"none", "not known of these runs"},
            {"legend", runs_.size() > 1},
            {"x", {{"name", "step"}}},
            {"y", std::move(y)},
            {"series", OrderedJson::array()}};
  }

  OrderedJson line(size_t run, const std::vector<PlotPoint>& points, bool is_dashed = false) const {
    return {{"name", clipped(runs_[run].name, kMostName)},
            {"kind", "line"},
            {"color", run},
            {"dashed", is_dashed},
            {"points", points_json(thinned(points, most_points_))}};
  }

  OrderedJson metric(std::string_view title, std::string_view more, Metric metric,
                     OrderedJson y) const {
    OrderedJson drawn = chart(title, more, std::move(y));
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::vector<PlotPoint> points;
      for (const LoggedStep& s : runs_[i].steps)
        points.push_back({.x = static_cast<double>(s.step), .y = s[metric]});
      drawn["series"].push_back(line(i, points));
    }
    return drawn;
  }

  OrderedJson loss() const {
    OrderedJson drawn = metric("Loss", "", Metric::kLoss, {{"log_above", 2.5}});
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::vector<PlotPoint> points;
      for (const auto& [step, loss] : runs_[i].validation)
        points.push_back({.x = static_cast<double>(step), .y = loss});
      if (points.empty()) continue;
      drawn["more"] = "validation dashed";
      drawn["series"].push_back(line(i, points, true));
    }
    return with_marks(std::move(drawn));
  }

  // Adds a triangle at the bottom for each event.
  OrderedJson with_marks(OrderedJson drawn) const {
    for (size_t kind = 0; kind < kNumRunEventKinds; ++kind) {
      OrderedJson points = OrderedJson::array();
      for (const RunHistory& run : runs_) {
        for (const RunEvent* event : chosen_events(run.events, kMostMarks / 2 / runs_.size())) {
          if (static_cast<size_t>(event->kind) == kind)
            points.push_back({event->step, 0.02,
                              fmt::format("{} at step {}", name_of(event->kind), event->step)});
        }
      }
      if (points.empty()) continue;
      drawn["series"].push_back({{"kind", "dots"},
                                 {"marks", true},
                                 {"style", "triangle"},
                                 {"color", kEventColors[kind]},
                                 {"points", points}});
    }
    return drawn;
  }

  // The share of steps by their time, in bins that all runs share.
  OrderedJson step_times() const {
    constexpr size_t kBins = 40;
    OrderedJson drawn = chart("Seconds of a step", "by share of steps, percent", {{"min", 0}});
    drawn["x"] = {{"name", "s"}};
    double low = INFINITY;
    double high = 0.0;
    for (const RunHistory& run : runs_) {
      low = std::fmin(low, quantile(run, Metric::kStepTime, 0.0));
      high = std::fmax(high, quantile(run, Metric::kStepTime, 0.995));
    }
    const double width = high > low ? (high - low) / kBins : 1e-9 + 0.1 * low / kBins;
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::array<double, kBins> bins{};
      double sum = 0.0;
      int64_t before = 0;
      for (const LoggedStep& s : runs_[i].steps) {
        const auto weight = static_cast<double>(s.step - before);
        before = s.step;
        // The first step warms up.
        const double time = s[Metric::kStepTime];
        if (!std::isfinite(time) || (s.step == 1 && runs_[i].steps.size() > 1)) continue;
        bins[std::min(static_cast<size_t>(std::max(0.0, (time - low) / width)), kBins - 1)] +=
            weight;
        sum += weight;
      }
      std::vector<PlotPoint> points;
      for (size_t bin = 0; bin < kBins && sum > 0.0; ++bin)
        points.push_back(
            {.x = low + width * (static_cast<double>(bin) + 0.5), .y = 100.0 * bins[bin] / sum});
      drawn["series"].push_back(line(i, points));
    }
    return drawn;
  }

  OrderedJson phases() const {
    // Exposed communication lies within forward and backward.
    constexpr std::array<std::pair<Metric, const char*>, 5> kPhases = {
        {{Metric::kForward, "forward"},
         {Metric::kBackward, "backward"},
         {Metric::kCheckpoint, "checkpoint"},
         {Metric::kOptimizer, "optimizer"},
         {Metric::kData, "data"}}};
    OrderedJson names = OrderedJson::array();
    for (const RunHistory& run : runs_) names.push_back(clipped(run.name, 20));
    OrderedJson drawn = chart("Where a step's time goes", "mean seconds", {{"labels", names}});
    drawn.update({{"x", {{"name", "s"}, {"min", 0}}},
                  {"legend", true},
                  {"bars", true},
                  {"height", std::max<size_t>(240, 130 + 26 * runs_.size())}});
    std::vector<double> from(runs_.size(), 0.0);
    for (size_t p = 0; p < kPhases.size(); ++p) {
      const auto& [metric, name] = kPhases[p];
      OrderedJson points = OrderedJson::array();
      for (size_t i = 0; i < runs_.size(); ++i) {
        const double mean = mean_of(runs_[i], metric);
        if (mean == 0.0) continue;
        points.push_back(
            {rounded(from[i]), rounded(from[i] + mean), i, fmt::format("{} {:.4g} s", name, mean)});
        from[i] += mean;
      }
      drawn["series"].push_back(
          {{"name", name}, {"kind", "bars"}, {"color", p}, {"points", points}});
    }
    return drawn;
  }

  OrderedJson overview() const {
    const auto number = [](double value, int digits = 4) {
      return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : std::string("-");
    };
    OrderedJson rows = OrderedJson::array();
    OrderedJson notes = OrderedJson::array();
    for (const RunHistory& run : runs_) {
      const LoggedStep& last = run.steps.back();
      const double tps = quantile(run, Metric::kTps, 0.5);
      rows.push_back(
          {clipped(run.name), std::to_string(last.step),
           short_number(static_cast<double>(last.tokens_seen)), std::to_string(run.world_size),
           number(last[Metric::kLoss], 5),
           run.validation.empty() ? "-" : number(run.validation.back().second, 5),
           std::isfinite(tps) ? short_number(std::round(tps)) : "-",
           number(quantile(run, Metric::kMfu, 0.5)), number(quantile(run, Metric::kStepTime, 0.5)),
           number(quantile(run, Metric::kMemory, 1.0)), run.job.empty() ? "-" : clipped(run.job)});
      for (const std::string& note : run.notes)
        notes.push_back({{"text", clipped(run.name) + ": " + clipped(note)}});
    }
    OrderedJson blocks = {
        {{"table",
          {{"columns",
            {"run", "steps", "tokens", "ranks", "last loss", "validation", "tokens/s", "MFU %",
             "s a step", "memory GiB", "job"}},
           {"rows", rows}}}},
        {{"text", "Tokens/s (of a device), MFU and seconds are medians of logged steps."}}};
    for (OrderedJson& note : notes) blocks.push_back(std::move(note));
    return blocks;
  }

  OrderedJson events() const {
    OrderedJson rows = OrderedJson::array();
    size_t num_all = 0;
    for (const RunHistory& run : runs_) {
      const std::vector<RunEvent> all = with_saves_joined(run);
      num_all += all.size();
      for (const RunEvent* event : chosen_events(all, kMostEvents / runs_.size()))
        rows.push_back({clipped(run.name, kMostName), std::to_string(event->step),
                        name_of(event->kind), clipped(event->text), clipped(event->time)});
    }
    OrderedJson blocks = {{{"heading", "Events"}}};
    if (rows.empty()) {
      blocks.push_back({{"text", "The folders have no events.jsonl and no logs."}});
      return blocks;
    }
    const size_t num_shown = rows.size();
    blocks.push_back({{"table",
                       {{"columns", {"run", "step", "event", "what the run said", "time"}},
                        {"rows", std::move(rows)},
                        {"long", 3}}}});
    if (num_shown < num_all)
      blocks.push_back(
          {{"text", fmt::format("{} of {} events; events.jsonl has all.", num_shown, num_all)}});
    return blocks;
  }

  std::span<const RunHistory> runs_;
  size_t most_points_;
};

}  // namespace

OrderedJson run_blocks(std::span<const RunHistory> runs) {
  return Page(runs).blocks();
}

std::string run_page(std::string_view title, std::span<const RunHistory> runs) {
  return html_page(title, run_blocks(runs));
}

}  // namespace tokamak
