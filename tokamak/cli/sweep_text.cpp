#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/sweep.h"
#include "tokamak/core/bytes.h"
#include "tokamak/price/report/report_json.h"

namespace tokamak::cli {
namespace {

using price::Report;

const Report& first_report(std::span<const SweepLine> lines) {
  return *std::ranges::find_if(lines, [](const SweepLine& line) {
            return line.report.has_value();
          })->report;
}

double mfu(const Report& r) {
  return r.device_flops(r.flops[0]) / r.peak_flops;
}

// Returns what all reports have in common, or `otherwise`.
template <class Get>
std::string common(std::span<const SweepLine> lines, const Get& get, const std::string& otherwise) {
  const auto first = get(first_report(lines));
  const bool is_common = std::ranges::all_of(
      lines, [&](const SweepLine& line) { return !line.report || get(*line.report) == first; });
  return is_common ? fmt::format("{}", first) : otherwise;
}

std::string title(std::span<const SweepLine> lines) {
  return fmt::format("{} on {}",
                     common(
                         lines, [](const Report& r) { return r.model; }, "several models"),
                     common(
                         lines, [](const Report& r) { return r.machine; }, "several machines"));
}

// Returns what reports say of their machines, each text once.
std::set<std::string> machine_texts(std::span<const SweepLine> lines) {
  std::set<std::string> texts;
  for (const SweepLine& line : lines) {
    if (!line.report) continue;
    texts.insert({line.report->taken, line.report->unverified});
  }
  texts.erase("");
  return texts;
}

std::string table(std::span<const Sweep> sweeps, std::span<const SweepLine> lines) {
  std::vector<size_t> widths;
  std::string text;
  for (size_t s = 0; s < sweeps.size(); ++s) {
    widths.push_back(sweeps[s].key.size());
    for (const std::string& value : sweeps[s].values) widths[s] = std::max(widths[s], value.size());
    text += fmt::format("{}{:<{}}", s > 0 ? "  " : "", sweeps[s].key, widths[s]);
  }
  text += fmt::format("{:>8}{:>12}{:>14}{:>9}{:>12}{:>10}{:>10}{:>12}\n", "GPUs", "step s",
                      "tok/s/GPU", "MFU %", "relative %", "comm %", "bubble %", "memory GiB");
  const Report& first = first_report(lines);
  for (const SweepLine& line : lines) {
    for (size_t s = 0; s < sweeps.size(); ++s)
      text += fmt::format("{}{:<{}}", s > 0 ? "  " : "", line.values[s], widths[s]);
    text += fmt::format("{:>8}", line.num_gpus);
    if (!line.report) {
      text += fmt::format("  {}\n", line.reason);
      continue;
    }
    const Report& r = *line.report;
    const double comm = r.step.by_category[price::Category::kExposedComm] / r.step.seconds;
    text += fmt::format("{:>12.4f}{:>14.1f}{:>9.2f}{:>12.2f}{:>10.2f}{:>10.2f}{:>12.2f}{}\n",
                        r.step.seconds, r.device_tokens_per_s(), 100.0 * mfu(r),
                        100.0 * r.device_tokens_per_s() / first.device_tokens_per_s(), 100.0 * comm,
                        100.0 * r.step.bubble_fraction, r.memory_bytes() / kGiB,
                        r.fits() ? "" : "  does not fit");
  }
  const std::string peak = common(
      lines, [](const Report& r) { return fmt::format("{:.0f} TFLOP/s", 1e-12 * r.peak_flops); },
      "each line's peak");
  for (const std::string& said : machine_texts(lines)) text += said + "\n";
  return text + fmt::format("MFU as {} counts, of {}; relative to the first line{}\n",
                            first.flops[0].name, peak, lines[0].report ? "" : " that has a price");
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + "\"";
}

// Returns the name of a curve whose lines have all but the last value in common.
std::string curve_name(std::span<const Sweep> sweeps, const SweepLine& line) {
  std::vector<std::string> parts;
  for (size_t s = 0; s + 1 < sweeps.size(); ++s)
    parts.push_back(fmt::format("{} {}", sweeps[s].key, line.values[s]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string sweep_text(std::span<const Sweep> sweeps, std::span<const SweepLine> lines) {
  const std::string precision = common(
      lines, [](const Report& r) { return std::string(name_of(r.precision)); },
      "several precisions");
  return fmt::format("{}, {}\n{}", title(lines), precision, table(sweeps, lines));
}

std::string sweep_csv(std::span<const Sweep> sweeps, std::span<const SweepLine> lines) {
  std::vector<std::string> header;
  for (const Sweep& sweep : sweeps) {
    if (sweep.key != "gpus") header.push_back(sweep.key);
  }
  for (const char* name : {"gpus", "step_time_s", "tokens_per_s_per_gpu", "mfu", "hidden_comm_s",
                           "bubble_fraction", "memory_bytes", "fits"})
    header.emplace_back(name);
  for (size_t c = 0; c < price::kNumCategories; ++c)
    header.push_back(fmt::format("{}_s", price::name_of(static_cast<price::Category>(c))));
  header.emplace_back("reason");
  std::string text = fmt::format("{}\n", fmt::join(header, ","));
  for (const SweepLine& line : lines) {
    std::vector<std::string> cells;
    for (size_t s = 0; s < sweeps.size(); ++s) {
      if (sweeps[s].key != "gpus") cells.push_back(csv_cell(line.values[s]));
    }
    cells.push_back(fmt::format("{}", line.num_gpus));
    if (line.report) {
      const Report& r = *line.report;
      for (const double value : {r.step.seconds, r.device_tokens_per_s(), mfu(r),
                                 r.step.hidden_comm_s, r.step.bubble_fraction})
        cells.push_back(fmt::format("{}", value));
      cells.push_back(fmt::format("{:.0f}", r.memory_bytes()));
      cells.emplace_back(r.fits() ? "1" : "0");
      for (const double seconds : r.step.by_category) cells.push_back(fmt::format("{}", seconds));
    }
    cells.resize(header.size());
    cells.back() = csv_cell(line.reason);
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

std::string sweep_json(std::span<const Sweep> sweeps, std::span<const SweepLine> lines) {
  OrderedJson all = OrderedJson::array();
  for (const SweepLine& line : lines) {
    OrderedJson values;
    for (size_t s = 0; s < sweeps.size(); ++s) values[sweeps[s].key] = line.values[s];
    OrderedJson entry = {{"sweep", values}};
    if (line.report) {
      entry.update(price::report_json(*line.report));
    } else {
      entry["gpus"] = line.num_gpus;
      entry["reason"] = line.reason;
    }
    all.push_back(std::move(entry));
  }
  return all.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string sweep_html(std::span<const Sweep> sweeps, std::span<const SweepLine> lines,
                       std::vector<price::PublishedPoint> published) {
  const Sweep& last = sweeps.back();
  price::SweepPicture picture{
      .key = last.key, .values = last.values, .published = std::move(published)};
  std::vector<price::SweepCurve>& curves = picture.curves;
  for (size_t i = 0; i < lines.size(); ++i) {
    const SweepLine& line = lines[i];
    if (i % last.values.size() == 0) curves.push_back({.name = curve_name(sweeps, line)});
    const double rate = line.report ? line.report->device_tokens_per_s() : 0.0;
    curves.back().points.push_back({.device_tokens_per_s = rate, .reason = line.reason});
  }
  return price::sweep_page(title(lines), table(sweeps, lines), picture);
}

}  // namespace tokamak::cli
