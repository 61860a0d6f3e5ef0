// A published run's own table: what was published, what we price, and what a run has measured, by
// the formulas of its source.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/models/model_spec.h"
#include "tokamak/run/presets.h"

namespace tokamak {

/// One column; what is not known is absent. "Corrected" counts the model that ran: its matmuls, and
/// of attention the keys that a causal query sees, over the device's peak at its precision.
struct PresetColumn {
  std::string title;
  std::optional<double> last_step_s;
  std::optional<double> median_step_s;
  std::optional<double> tokens_per_s;         ///< of the whole mesh, by the last step
  std::optional<double> device_tokens_per_s;  ///< of one device
  std::optional<double> days;                 ///< to 1e12 tokens
  std::optional<double> device_tflops;        ///< by the source's formula
  std::optional<double> mfu;                  ///< percent, by the source's formula and peak
  std::optional<double> corrected_mfu;        ///< percent
};

/// A run on this machine and its measured times.
struct PresetRun {
  ModelSpec model;
  int64_t seq_len = 0;
  double tokens_per_step = 0.0;
  int64_t num_devices = 1;
  std::optional<double> last_step_s;
  std::optional<double> median_step_s;
  std::optional<double> peak_flops;  ///< of one device, at the precision of its linear layers
  bool is_proxy = false;             ///< else it is the preset's own model
};

struct PresetTable {
  std::string preset;
  std::string notes;  ///< lines: how each MFU is counted, the source
  std::vector<PresetColumn> columns;
};

/// Returns the published figures and what follows from them, over `peak_flops` of one device where
/// the source names no other peak.
PresetColumn published_column(const Preset& preset, double peak_flops);

/// Prices the preset on its own machine, and returns that between the published figures and `run`,
/// whose title is `run_title`. What is measured is counted over the peak of its own device, and
/// only where it is the preset's model on as many devices with the source's vocabulary and peak.
PresetTable preset_table(const Preset& preset, const PresetRun& run, const std::string& run_title);

std::string to_text(const PresetTable& table);

/// Returns one object with its keys in the table's order; an unknown figure is null.
std::string to_json(const PresetTable& table);

}  // namespace tokamak
