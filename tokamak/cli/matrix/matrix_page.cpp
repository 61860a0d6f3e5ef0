#include <algorithm>

#include <fmt/format.h>

#include "tokamak/cli/matrix/matrix_rows.h"
#include "tokamak/core/json.h"
#include "tokamak/core/svg.h"

namespace tokamak::cli {
namespace {

std::string or_empty(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "";
}

// Tokens per second of a row: measured, else priced.
double rate_of(const MatrixResult& r) {
  return r.tps.value_or(r.priced_tps.value_or(0.0));
}

// Memory of a row: measured, else planned.
double gib_of(const MatrixResult& r) {
  return r.tps ? r.memory_gib.value_or(0.0) : r.planned_gib.value_or(0.0);
}

std::string label_of(const MatrixRow& row) {
  return fmt::format("{}{}, recompute {}{}{}",
                     row.sharding.empty() ? "" : fmt::format("{} {}, ", row.sharding, row.ranks),
                     row.precision, row.recompute, row.graphs == "on" ? ", graphs" : "",
                     row.is_left_out_by_peer() ? " *" : "");
}

// A bar that is filled if its value was measured, and dashed if it was priced or planned alone.
std::string bar(double x, double y, double width, std::string_view color, bool is_measured,
                const std::string& title) {
  constexpr double kHeight = 14.0;
  if (is_measured) return svg::rect(x, y, width, kHeight, color, title);
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
      "stroke=\"{}\" stroke-dasharray=\"3 2\"/>\n",
      x, y + 0.5, width, kHeight - 1.0, color);
}

// Bars of one model's rows: tokens per second with a line where the price was, and memory.
std::string bars_of(const std::vector<const MatrixResult*>& rows) {
  constexpr double kRow = 20.0;
  constexpr double kLabels = 230.0;
  constexpr double kBars = 270.0;
  constexpr double kFigures = 170.0;
  constexpr double kMemory = kLabels + kBars + kFigures;
  constexpr double kMemoryBars = 110.0;
  double most = 1.0;
  double most_gib = 1.0;
  for (const MatrixResult* r : rows) {
    most = std::max({most, rate_of(*r), r->priced_tps.value_or(0.0)});
    most_gib = std::max(most_gib, gib_of(*r));
  }
  std::string out =
      svg::begin(kMemory + kMemoryBars + 80.0, kRow * static_cast<double>(rows.size()));
  double y = 0.0;
  for (const MatrixResult* r : rows) {
    const double text_y = y + kRow - 6.0;
    out += svg::text(kLabels - 8.0, text_y, label_of(r->row), "end");
    const std::string_view color = svg::kCurveColors[r->row.is_fp8() ? 1 : 0];
    const double width = std::max(1.0, rate_of(*r) / most * kBars);
    double end = kLabels + width;
    if (rate_of(*r) > 0.0)
      out += bar(kLabels, y + 3.0, width, color, r->tps.has_value(), r->row.name());
    if (r->tps && r->priced_tps) {
      const double at = kLabels + *r->priced_tps / most * kBars;
      out += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"currentColor\" stroke-width=\"1.5\"/>\n",
          at, y + 1.0, y + kRow - 1.0);
      end = std::max(end, at);
    }
    std::string figures = r->reason;
    if (r->tps) {
      figures = fmt::format("{:.0f} tok/s{}", *r->tps,
                            r->mfu ? fmt::format(", MFU {:.1f} %", *r->mfu) : "");
    } else if (r->priced_tps) {
      figures = fmt::format("priced {:.0f} tok/s", *r->priced_tps);
    }
    out += svg::text(end + 8.0, text_y, figures);
    if (const double gib = gib_of(*r); gib > 0.0) {
      const double gib_width = std::max(1.0, gib / most_gib * kMemoryBars);
      out += bar(kMemory, y + 3.0, gib_width, svg::kCurveColors[5], r->tps.has_value(), "memory");
      out += svg::text(kMemory + gib_width + 8.0, text_y, fmt::format("{:.1f} GiB", gib));
    }
    y += kRow;
  }
  return out + "</svg>\n";
}

std::string table_of(const std::vector<MatrixResult>& results) {
  std::string out =
      "<div class=\"wide\"><table><tr><th>run</th><th>tok/s per rank</th><th>priced</th>"
      "<th>MFU %</th><th>GiB</th><th>planned</th><th></th></tr>\n";
  for (const MatrixResult& r : results) {
    out += fmt::format(
        "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></"
        "tr>\n",
        svg::escaped(r.row.name()), r.row.is_left_out_by_peer() ? " *" : "",
        or_empty(r.tps, "{:.0f}"), or_empty(r.priced_tps, "{:.0f}"), or_empty(r.mfu, "{:.1f}"),
        or_empty(r.memory_gib, "{:.1f}"), or_empty(r.planned_gib, "{:.1f}"),
        svg::escaped(r.reason));
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string matrix_line(const MatrixResult& r) {
  if (!r.tps)
    return fmt::format("{}: {}{}", r.row.name(), r.reason,
                       r.priced_tps ? fmt::format(", priced {:.0f} tok/s", *r.priced_tps) : "");
  return fmt::format("{}: {:.0f} tok/s per rank{}, {:.1f} GiB", r.row.name(), *r.tps,
                     r.priced_tps ? fmt::format(" (priced {:.0f})", *r.priced_tps) : "",
                     r.memory_gib.value_or(0.0));
}

std::string matrix_csv(const std::vector<MatrixResult>& results) {
  std::string out =
      "model,batch,seq_len,ranks,sharding,precision,recompute,graphs,left_out_by_llm_train_bench,"
      "tps,priced_tps,mfu,memory_gib,planned_gib,reason\n";
  for (const MatrixResult& r : results) {
    std::string reason = r.reason;
    std::replace(reason.begin(), reason.end(), '"', '\'');
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n", r.row.model.flavor,
                       r.row.model.batch, r.row.model.seq_len, r.row.ranks, r.row.sharding,
                       r.row.precision, r.row.recompute, r.row.graphs,
                       r.row.is_left_out_by_peer() ? 1 : 0, or_empty(r.tps, "{:.1f}"),
                       or_empty(r.priced_tps, "{:.1f}"), or_empty(r.mfu, "{:.3f}"),
                       or_empty(r.memory_gib, "{:.3f}"), or_empty(r.planned_gib, "{:.3f}"), reason);
  }
  return out;
}

std::string matrix_json(const std::vector<MatrixResult>& results) {
  const auto number = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  OrderedJson all = OrderedJson::array();
  for (const MatrixResult& r : results) {
    all.push_back({{"model", r.row.model.flavor},
                   {"batch", r.row.model.batch},
                   {"seq_len", r.row.model.seq_len},
                   {"ranks", r.row.ranks},
                   {"sharding", r.row.sharding},
                   {"precision", r.row.precision},
                   {"recompute", r.row.recompute},
                   {"graphs", r.row.graphs == "on"},
                   {"left_out_by_llm_train_bench", r.row.is_left_out_by_peer()},
                   {"tps", number(r.tps)},
                   {"priced_tps", number(r.priced_tps)},
                   {"mfu", number(r.mfu)},
                   {"memory_gib", number(r.memory_gib)},
                   {"planned_gib", number(r.planned_gib)},
                   {"reason", r.reason}});
  }
  return all.dump(1) + "\n";
}

std::string matrix_page(const std::string& title, const std::vector<MatrixResult>& results) {
  std::string body =
      "<p>Bars on the left are tokens per second and rank; a line marks the price that was "
      "computed before the run. Bars on the right are memory. A run with dashed bars does not fit "
      "on this device: it is priced and planned alone. llm-train-bench leaves out the rows that "
      "have a star.</p>\n";
  std::vector<std::string> models;
  for (const MatrixResult& r : results) {
    if (std::find(models.begin(), models.end(), r.row.model.flavor) == models.end())
      models.push_back(r.row.model.flavor);
  }
  for (const std::string& model : models) {
    std::vector<const MatrixResult*> rows;
    for (const MatrixResult& r : results) {
      if (r.row.model.flavor == model) rows.push_back(&r);
    }
    body += fmt::format("<h2>{}, {} x {}</h2>\n<div class=\"wide\">{}</div>\n", svg::escaped(model),
                        rows[0]->row.model.batch, rows[0]->row.model.seq_len, bars_of(rows));
  }
  body += "<h2>All rows</h2>\n" + table_of(results);
  return svg::page(title, body,
                   ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}"
                   "td,th{padding:2px 10px 2px 0;text-align:right;white-space:nowrap}"
                   "td:first-child,th:first-child,td:last-child{text-align:left}"
                   ".wide svg{min-width:640px}");
}

}  // namespace tokamak::cli
