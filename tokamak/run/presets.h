// Published runs as ready configurations (presets/catalog.toml).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/config/load.h"

namespace tokamak {

struct Preset {
  std::string name;
  std::string title;
  std::string config;                  ///< a file of presets/
  std::vector<std::string> overrides;  ///< "section.key=value"
  std::string cluster;                 ///< a machine file
  std::string site;                    ///< of `launch --slurm`; "" = none is known
  std::string time;                    ///< limit for all steps, as sbatch takes it; "" = none
  int64_t num_gpus = 1;
  std::string precision;               ///< of the linear layers
  std::string count;                   ///< the formula of FLOPs: "nemo" or "torchtitan"
  std::optional<int64_t> count_vocab;  ///< that it counts; absent: the model's
  std::optional<double> count_tflops;  ///< the peak that it divides by; absent: the device's
  std::string source;
  std::string note;
  std::optional<double> step_s;  ///< published, as are the following; absent = not stated
  std::optional<double> tokens_per_s;
  std::optional<double> tflops;  ///< of one device, as the source counts them
  std::optional<double> mfu;     ///< percent, likewise
};

/// Returns all presets in the catalog's order.
const std::vector<Preset>& all_presets();

/// Throws Error that names the nearest preset if no preset has this name.
const Preset& find_preset(const std::string& name);

/// Returns its configuration, with `overrides` ("--section.key=value") after its own.
LoadedConfig load_preset(const Preset& preset, std::span<const std::string> overrides = {});

/// Returns one line per preset: name and title.
std::string presets_text();

/// Returns text such as "published: 17.20 s a step, MFU 55.78 %  (source; note)\n".
std::string published_text(const Preset& preset);

}  // namespace tokamak
