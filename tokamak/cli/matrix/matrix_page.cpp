#include <algorithm>

#include <fmt/format.h>

#include "tokamak/cli/matrix/matrix_rows.h"
#include "tokamak/core/page.h"

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

// Bars of one model's rows. Those that were not measured are hollow: priced and planned alone.
OrderedJson chart_of(const std::vector<const MatrixResult*>& rows, bool is_memory) {
  OrderedJson names = OrderedJson::array();
  // By whether rows are in low precision, and whether they were measured.
  OrderedJson points[2][2] = {{OrderedJson::array(), OrderedJson::array()},
                              {OrderedJson::array(), OrderedJson::array()}};
  OrderedJson prices = OrderedJson::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    const MatrixResult& r = *rows[i];
    names.push_back(label_of(r.row));
    std::string figures = r.reason;
    if (is_memory) {
      figures = gib_of(r) > 0.0 ? fmt::format("{:.1f} GiB", gib_of(r)) : "";
    } else if (r.tps) {
      figures =
          fmt::format("{:.0f} tok/s{}", *r.tps, r.mfu ? fmt::format(", MFU {:.1f} %", *r.mfu) : "");
    } else if (r.priced_tps) {
      figures = fmt::format("priced {:.0f} tok/s", *r.priced_tps);
    }
    points[r.row.is_low() ? 1 : 0][r.tps ? 1 : 0].push_back(
        {0, rounded(is_memory ? gib_of(r) : rate_of(r)), i, figures});
    if (!is_memory && r.tps && r.priced_tps)
      prices.push_back(
          {rounded(*r.priced_tps), i, fmt::format("priced {:.0f} tok/s", *r.priced_tps)});
  }
  OrderedJson series = OrderedJson::array();
  for (const int is_low : {0, 1}) {
    for (const int is_measured : {0, 1}) {
      series.push_back({{"name", precision_kind(is_low == 1)},
                        {"kind", "bars"},
                        {"color", is_low},
                        {"hollow", is_measured == 0},
                        {"words", true},
                        {"points", std::move(points[is_low][is_measured])}});
    }
  }
  if (!prices.empty())
    series.push_back({{"name", "priced before the run"},
                      {"kind", "dots"},
                      {"color", kRed},
                      {"style", "line"},
                      {"rotation", 90},
                      {"radius", 9},
                      {"points", prices}});
  return {{"title", is_memory ? "Memory" : "Tokens per second and rank"},
          {"height", 130 + 24 * rows.size()},
          {"legend", true},
          {"bars", true},
          {"right", 110},
          {"x", {{"name", is_memory ? "GiB" : "tok/s"}, {"min", 0}}},
          {"y", {{"labels", names}}},
          {"series", series}};
}

OrderedJson table_of(const std::vector<MatrixResult>& results) {
  OrderedJson rows = OrderedJson::array();
  for (const MatrixResult& r : results) {
    rows.push_back({r.row.name() + (r.row.is_left_out_by_peer() ? " *" : ""),
                    or_empty(r.tps, "{:.0f}"), or_empty(r.priced_tps, "{:.0f}"),
                    or_empty(r.mfu, "{:.1f}"), or_empty(r.memory_gib, "{:.1f}"),
                    or_empty(r.planned_gib, "{:.1f}"), r.reason});
  }
  return {{"columns", {"run", "tok/s per rank", "priced", "MFU %", "GiB", "planned", "reason"}},
          {"rows", rows}};
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
    std::ranges::replace(reason, '"', '\'');
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
  OrderedJson blocks = OrderedJson::array();
  blocks.push_back(
      {{"text",
        "A red dash marks the price that was computed before the run. A run with hollow bars does "
        "not fit on this device: it is priced and planned alone. llm-train-bench leaves out the "
        "rows that have a star."}});
  std::vector<std::string> models;
  for (const MatrixResult& r : results) {
    if (std::ranges::find(models, r.row.model.flavor) == models.end())
      models.push_back(r.row.model.flavor);
  }
  for (const std::string& model : models) {
    std::vector<const MatrixResult*> rows;
    for (const MatrixResult& r : results) {
      if (r.row.model.flavor == model) rows.push_back(&r);
    }
    blocks.push_back({{"heading", fmt::format("{}, {} x {}", model, rows[0]->row.model.batch,
                                              rows[0]->row.model.seq_len)},
                      {"chart", chart_of(rows, false)}});
    blocks.push_back({{"chart", chart_of(rows, true)}});
  }
  blocks.push_back({{"heading", "All rows"}, {"table", table_of(results)}});
  return html_page(title, blocks);
}

}  // namespace tokamak::cli
