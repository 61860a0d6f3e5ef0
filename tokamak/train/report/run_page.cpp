#include "tokamak/train/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "tokamak/core/line_plot.h"
#include "tokamak/core/svg.h"

namespace tokamak {
namespace {

using svg::escaped;
using svg::short_number;

// Together they bound the page: about 13 bytes a point, 120 of a mark, 600 of an event.
constexpr size_t kMostPoints = 30'000;
constexpr size_t kMostMarks = 600;
constexpr size_t kMostEvents = 400;
constexpr size_t kMostWords = 240;         // of an event's text, a name, a note
constexpr size_t kMostEscapedWords = 480;  // the same as HTML

constexpr std::string_view kStyle =
    ".runs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));"
    "gap:1em 1.5em}figure{margin:0}figcaption{font-weight:600;margin-bottom:.2em}"
    "figcaption small{font-weight:400;color:var(--faint)}figure svg{width:100%;display:block}"
    ".legend{display:flex;flex-wrap:wrap;gap:.3em 1.2em;margin:1em 0}.legend span{"
    "display:inline-flex;align-items:center;gap:.4em;overflow-wrap:anywhere}"
    ".legend i{width:.8em;height:.8em;flex:none;border-radius:2px}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85em}"
    "th,td{text-align:right;padding:.3em .8em;border-bottom:1px solid var(--line);"
    "white-space:nowrap}th{font-weight:600;color:var(--faint)}"
    "td.words,th.words{text-align:left}td.long{white-space:normal;overflow-wrap:anywhere;"
    "min-width:14em;max-width:60em}.note{color:var(--faint);font-size:.85em}"
    ".none{color:var(--faint);padding:2em 0}"
    ".overview th:first-child,.overview td:first-child{text-align:left}"
    // Tables become paragraphs where a page is narrow.
    "@media(max-width:700px){th{display:none}table,tbody,tr{display:block}"
    "tr{border-bottom:1px solid var(--line);padding:.4em 0}"
    "td{display:inline-block;border:0;padding:0 .8em 0 0;white-space:normal}"
    ".overview td:first-child,td.long{display:block;font-weight:600}td.long{font-weight:400}"
    ".overview td+td::before{content:attr(data-name) \" \";color:var(--faint)}}";

constexpr std::array<std::string_view, kNumRunEventKinds> kEventColors = {
    "#4f86c6", "#4f86c6", "#7bb274", "#e0b04c", "#e05a48", "#e0b04c", "#8a8a8a"};

std::string_view color_of(RunEventKind kind) {
  return kEventColors[static_cast<size_t>(kind)];
}

std::string run_color(size_t run) {
  return std::string(svg::kCurveColors[run % svg::kNumCurveColors]);
}

std::string clipped(std::string_view words) {
  if (words.size() <= kMostWords) {
    std::string all = escaped(words);
    if (all.size() <= kMostEscapedWords) return all;
    words = words.substr(0, kMostEscapedWords / 6);
  }
  words = words.substr(0, kMostWords);
  // Not within a character.
  while (!words.empty() && (static_cast<unsigned char>(words.back()) & 0xc0U) == 0x80)
    words.remove_suffix(1);
  if (!words.empty() && static_cast<unsigned char>(words.back()) >= 0xc0) words.remove_suffix(1);
  std::string some = escaped(words);
  if (some.size() > kMostEscapedWords) some = escaped(words.substr(0, kMostEscapedWords / 6));
  return some + "...";
}

std::vector<svg::PlotPoint> points_of(const RunHistory& run, Metric metric) {
  std::vector<svg::PlotPoint> points;
  points.reserve(run.steps.size());
  for (const LoggedStep& s : run.steps)
    points.push_back({.x = static_cast<double>(s.step), .y = s[metric]});
  return points;
}

// Returns the finite values of a metric, sorted.
std::vector<double> sorted_values(const RunHistory& run, Metric metric) {
  std::vector<double> values;
  for (const LoggedStep& s : run.steps) {
    if (std::isfinite(s[metric])) values.push_back(s[metric]);
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::optional<double> median(const RunHistory& run, Metric metric) {
  const auto values = sorted_values(run, metric);
  if (values.empty()) return std::nullopt;
  return values[values.size() / 2];
}

std::optional<double> highest(const RunHistory& run, Metric metric) {
  const auto values = sorted_values(run, metric);
  if (values.empty()) return std::nullopt;
  return values.back();
}

class Page {
 public:
  explicit Page(std::span<const RunHistory> runs) : runs_(runs) {
    most_points_ = std::max<size_t>(kMostPoints / (8 * runs.size()), 40);
  }

  std::string body() const {
    std::string html = overview();
    if (runs_.size() > 1) html += legend();
    html += "<div class=\"runs\">\n";
    html += figure("Loss", has_validation() ? "validation dashed" : "", draw(loss_plot()));
    html += metric_figure("Gradient norm", "before clipping", Metric::kGradNorm, false);
    html += metric_figure("Learning rate", "", Metric::kLr, true);
    html += metric_figure("Tokens per second", "and device", Metric::kTps, true, true);
    html += metric_figure("MFU", "percent of the device's peak", Metric::kMfu, true);
    html += metric_figure("Memory", "GiB, peak", Metric::kMemory, true);
    html += figure("Seconds of a step", "by share of steps, percent", draw(step_times()));
    html += figure("Where a step's time goes", "mean seconds", phases());
    html += "</div>\n";
    return html + events();
  }

 private:
  static std::string figure(std::string_view title, std::string_view more,
                            const std::string& drawn) {
    return fmt::format("<figure><figcaption>{}{}</figcaption>{}</figure>\n", title,
                       more.empty() ? "" : fmt::format(" <small>{}</small>", more),
                       drawn.empty() ? "<div class=\"none\">not known of these runs</div>" : drawn);
  }

  std::string metric_figure(std::string_view title, std::string_view more, Metric metric,
                            bool starts_at_zero, bool has_marks = false) const {
    svg::LinePlot plot{.starts_at_zero = starts_at_zero, .most_points = most_points_};
    if (metric == Metric::kGradNorm) plot.log_above = 10.0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      plot.curves.push_back(
          {.name = clip_name(i), .color = run_color(i), .points = points_of(runs_[i], metric)});
    }
    if (has_marks) plot.marks = marks();
    return figure(title, more, draw(plot));
  }

  // Names in pictures are escaped there.
  std::string clip_name(size_t run) const { return runs_[run].name.substr(0, 80); }

  bool has_validation() const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [](const RunHistory& r) { return !r.validation.empty(); });
  }

  svg::LinePlot loss_plot() const {
    svg::LinePlot plot{.marks = marks(), .log_above = 2.5, .most_points = most_points_};
    for (size_t i = 0; i < runs_.size(); ++i) {
      plot.curves.push_back({.name = clip_name(i),
                             .color = run_color(i),
                             .points = points_of(runs_[i], Metric::kLoss)});
      if (runs_[i].validation.empty()) continue;
      svg::PlotCurve curve{
          .name = clip_name(i) + ", validation", .color = run_color(i), .is_dashed = true};
      for (const auto& [step, loss] : runs_[i].validation)
        curve.points.push_back({.x = static_cast<double>(step), .y = loss});
      plot.curves.push_back(std::move(curve));
    }
    return plot;
  }

  // Returns a run's events with the saves between two others as one.
  static std::vector<RunEvent> with_saves_joined(const RunHistory& run) {
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

  // Returns at most `most` events of a run in their order: others before saves, early before late.
  static std::vector<const RunEvent*> chosen_events(std::span<const RunEvent> events, size_t most) {
    std::vector<const RunEvent*> chosen;
    for (const bool saves : {false, true}) {
      for (const RunEvent& event : events) {
        if ((event.kind == RunEventKind::kSave) == saves && chosen.size() < most)
          chosen.push_back(&event);
      }
    }
    std::sort(chosen.begin(), chosen.end());  // all are elements of one vector
    return chosen;
  }

  std::vector<svg::PlotMark> marks() const {
    std::vector<svg::PlotMark> marks;
    for (const RunHistory& run : runs_) {
      for (const RunEvent* event : chosen_events(run.events, kMostMarks / 2 / runs_.size())) {
        marks.push_back({.x = static_cast<double>(event->step),
                         .color = std::string(color_of(event->kind)),
                         .title = fmt::format("{} at step {}", name_of(event->kind), event->step)});
      }
    }
    return marks;
  }

  svg::Histogram step_times() const {
    svg::Histogram histogram;
    for (size_t i = 0; i < runs_.size(); ++i) {
      svg::Histogram::Part part{.name = clip_name(i), .color = run_color(i)};
      int64_t before = 0;
      for (const LoggedStep& s : runs_[i].steps) {
        // A line is the mean of the steps since the one before; the first step warms up.
        if (s.step > 1 || runs_[i].steps.size() == 1)
          part.weighted.push_back(
              {.x = s[Metric::kStepTime], .y = static_cast<double>(s.step - before)});
        before = s.step;
      }
      histogram.parts.push_back(std::move(part));
    }
    return histogram;
  }

  std::string phases() const {
    struct PhaseRow {
      Metric metric;
      std::string_view name;
      std::string_view color;
    };

    // Exposed communication lies within forward and backward.
    constexpr std::array kPhases{
        PhaseRow{Metric::kData, "data", "#8a8a8a"},
        PhaseRow{Metric::kForward, "forward", "#4f86c6"},
        PhaseRow{Metric::kBackward, "backward", "#7bb274"},
        PhaseRow{Metric::kOptimizer, "optimizer", "#9c7bc1"},
        PhaseRow{Metric::kCheckpoint, "checkpoint", "#e0b04c"},
    };
    constexpr double kWidth = 420.0;
    constexpr double kRow = 32.0;
    std::vector<std::array<double, kPhases.size()>> means;
    double most = 0.0;
    for (const RunHistory& run : runs_) {
      auto& mean = means.emplace_back();
      double sum = 0.0;
      for (size_t p = 0; p < kPhases.size(); ++p) {
        mean[p] = mean_of(run, kPhases[p].metric);
        sum += mean[p];
      }
      most = std::max(most, sum);
    }
    if (most == 0.0) return "";
    std::string drawn;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const double y = kRow * static_cast<double>(i);
      double x = 0.0;
      double sum = 0.0;
      drawn += svg::text(0.0, y + 10.0, clip_name(i).substr(0, 50));
      for (size_t p = 0; p < kPhases.size(); ++p) {
        const double width = (kWidth - 70.0) * means[i][p] / most;
        sum += means[i][p];
        drawn += svg::rect(x, y + 14.0, width, 12.0, kPhases[p].color,
                           fmt::format("{} {:.4g} s", kPhases[p].name, means[i][p]));
        x += width;
      }
      drawn += svg::text(x + 5.0, y + 24.0, fmt::format("{:.4g} s", sum));
    }
    const double bottom = kRow * static_cast<double>(runs_.size()) + 6.0;
    double x = 0.0;
    for (const PhaseRow& phase : kPhases) {
      drawn += svg::legend_entry(x, bottom, phase.color, phase.name);
      x += svg::legend_width(phase.name);
    }
    return svg::begin(kWidth, bottom + 16.0) + drawn + "</svg>\n";
  }

  static double mean_of(const RunHistory& run, Metric metric) {
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

  std::string overview() const {
    const auto number = [](std::optional<double> value, int digits = 4) {
      return value && std::isfinite(*value) ? fmt::format("{:.{}g}", *value, digits)
                                            : std::string("-");
    };
    std::string rows;
    std::string notes;
    for (const RunHistory& run : runs_) {
      const LoggedStep& last = run.steps.back();
      const std::pair<std::string_view, std::string> cells[] = {
          {"run", clipped(run.name)},
          {"steps", std::to_string(last.step)},
          {"tokens", short_number(static_cast<double>(last.tokens_seen))},
          {"ranks", std::to_string(run.world_size)},
          {"last loss", number(last[Metric::kLoss], 5)},
          {"validation", run.validation.empty() ? "-" : number(run.validation.back().second, 5)},
          {"tokens/s", whole(median(run, Metric::kTps))},
          {"MFU %", number(median(run, Metric::kMfu))},
          {"s a step", number(median(run, Metric::kStepTime))},
          {"memory GiB", number(highest(run, Metric::kMemory))},
          {"job", run.job.empty() ? "-" : clipped(run.job)}};
      if (rows.empty()) {
        for (const auto& [name, value] : cells) rows += fmt::format("<th>{}</th>", name);
        rows = fmt::format("<tr>{}</tr>\n", rows);
      }
      rows += "<tr>";
      for (const auto& [name, value] : cells)
        rows += fmt::format("<td data-name=\"{}\">{}</td>", name, value);
      rows += "</tr>\n";
      for (const std::string& note : run.notes)
        notes += fmt::format("<p class=\"note\">{}: {}</p>\n", clipped(run.name), clipped(note));
    }
    return fmt::format(
        "<div class=\"wide\"><table class=\"overview\">{}</table></div>\n<p "
        "class=\"note\">Tokens/s "
        "(of a device), MFU and seconds are medians of logged steps.</p>\n{}",
        rows, notes);
  }

  static std::string whole(std::optional<double> value) {
    return value ? short_number(std::round(*value)) : "-";
  }

  std::string legend() const {
    std::string html = "<div class=\"legend\">";
    for (size_t i = 0; i < runs_.size(); ++i) {
      html += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", run_color(i),
                          clipped(runs_[i].name));
    }
    return html + "</div>\n";
  }

  std::string events() const {
    std::string rows;
    size_t num_all = 0;
    size_t num_shown = 0;
    for (const RunHistory& run : runs_) {
      const std::vector<RunEvent> all = with_saves_joined(run);
      num_all += all.size();
      for (const RunEvent* event : chosen_events(all, kMostEvents / runs_.size())) {
        ++num_shown;
        rows += "<tr>";
        if (runs_.size() > 1) rows += fmt::format("<td class=\"words\">{}</td>", clipped(run.name));
        rows += fmt::format(
            "<td>{}</td><td class=\"words\"><b style=\"color:{}\">{}</b></td>"
            "<td class=\"words long\">{}</td><td class=\"words\">{}</td></tr>\n",
            event->step, color_of(event->kind), name_of(event->kind), clipped(event->text),
            clipped(event->time));
      }
    }
    std::string html = "<h2>Events</h2>\n";
    if (rows.empty())
      return html + "<p class=\"note\">The folders have no events.jsonl and no logs.</p>\n";
    html += fmt::format(
        "<div class=\"wide\"><table class=\"events\"><tr>{}<th>step</th><th "
        "class=\"words\">event</th>"
        "<th class=\"words\">what the run said</th><th "
        "class=\"words\">time</th></tr>\n{}</table></div>\n",
        runs_.size() > 1 ? "<th class=\"words\">run</th>" : "", rows);
    if (num_shown < num_all)
      html += fmt::format("<p class=\"note\">{} of {} events; events.jsonl has all.</p>\n",
                          num_shown, num_all);
    return html;
  }

  std::span<const RunHistory> runs_;
  size_t most_points_;
};

}  // namespace

std::string run_page(std::string_view title, std::span<const RunHistory> runs) {
  return svg::page(title, Page(runs).body(), kStyle);
}

}  // namespace tokamak
