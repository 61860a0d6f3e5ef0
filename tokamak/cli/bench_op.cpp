
#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "tokamak/cli/calibration_options.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/price/task/calibrate.h"
#include "tokamak/train/bench/op_benchmark.h"

namespace tokamak::cli {
namespace {

// Reads dims such as "16384x4096".
Dims dims_of(const std::string& text) {
  Dims dims;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(at, end, extent);
    TOK_REQUIRE(error == std::errc() && (next == end || (*next == 'x' && next + 1 < end)),
                "--dims \"{}\": wanted numbers with x between them", text);
    dims.push_back(extent);
    at = next == end ? end : next + 1;
  }
  return dims;
}

std::vector<const OpScene*> scenes_of(const std::string& name) {
  std::vector<const OpScene*> found;
  std::set<std::string> names{"all"};
  for (const OpScene& scene : op_scenes()) {
    const bool is_named = scene.name == name || scene.ops.contains(name);
    if (is_named || name == (scene.group.empty() ? "all" : scene.group)) found.push_back(&scene);
    names.insert(scene.ops.begin(), scene.ops.end());
    if (!scene.group.empty()) names.emplace(scene.group);
  }
  TOK_REQUIRE(!found.empty(), "tokamak bench op: no \"{}\"; there are {}{}", printable(name),
              fmt::join(names, ", "), nearest_hint(name, std::vector(names.begin(), names.end())));
  return found;
}

void print_header(const std::string& device, const std::string& dtype) {
  fmt::print("{}, {}; one call\n{:<20}{:<14}{:<24}{:>6}{:>11}{:>10}{:>9}{:>11}{:>9}\n", device,
             dtype, "op", "variant", "shape", "runs", "us", "TFLOP/s", "TB/s", "floor us",
             "floor %");
}

void print_row(const OpTime& t) {
  const bool is_product = t.kind == Cost::Kind::kGemm || t.kind == Cost::Kind::kAttention;
  const auto rate = [&](bool is_shown, double amount) {
    return is_shown ? fmt::format("{:.3f}", 1e-12 * amount / t.seconds) : "-";
  };
  fmt::print("{:<20}{:<14}{:<24}{:>6}{:>11.1f}{:>10}{:>9}{:>11}{:>9}\n", t.op, t.variant, t.shape,
             t.calls, 1e6 * t.seconds, rate(is_product, t.flops), rate(!is_product, t.bytes),
             t.floor_s > 0.0 ? fmt::format("{:.1f}", 1e6 * t.floor_s) : "-",
             t.floor_s > 0.0 ? fmt::format("{:.1f}", 100.0 * t.share_of_floor()) : "-");
}

std::string json_of(const OpTime& t, const std::string& device, const std::string& dtype) {
  Json line{{"bench", "op"},
            {"op", t.op},
            {"variant", t.variant},
            {"shape", t.shape},
            {"device", device},
            {"dtype", dtype},
            {"runs", t.calls},
            {"seconds", t.seconds},
            {"flops_per_s", t.flops / t.seconds},
            {"bytes_per_s", t.bytes / t.seconds}};
  if (t.floor_s > 0.0) {
    line["floor_s"] = t.floor_s;
    line["share_of_floor"] = t.share_of_floor();
  }
  return line.dump();
}

// Returns the memory of the host.
double memory_bytes() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGE_SIZE));
}

void write_calibration(const std::string& path, const std::string& machine,
                       const std::string& device, const std::string& dtype,
                       std::span<const price::TimedOp> ops) {
  const auto precision = dtype == "bfloat16" ? price::Precision::kBf16 : price::Precision::kFp32;
  write_file_atomic(path, price::device_toml(machine, device, memory_bytes(), precision, ops));
  fmt::print("calibration: {}\n", path);
}

}  // namespace

int run_bench_op(Args args) {
  CLI::App app("Times single ops on random operands: NAME is an op, a group of ops, or all.",
               "tokamak bench op");
  std::string name;
  std::string dtype = "bfloat16";
  std::string dims;
  std::string device = "auto";
  int threads = 0;
  double budget_s = 0.5;
  app.add_option("NAME", name, "rms_norm, attention_grad, a group, all (of no group)")->required();
  app.add_option("--dtype", dtype, "float32 or bfloat16")->capture_default_str();
  app.add_option("--dims", dims,
                 "16384x4096 and so on; without it those of Llama-3-8B, on a CPU small ones");
  app.add_option("--seconds", budget_s, "for the ops of each size")->capture_default_str();
  app.add_option("--threads", threads, "of a CPU; 0 = all")->capture_default_str();
  app.add_option("--device", device, kDeviceHelp)->capture_default_str();
  CalibrationOptions calibration;
  calibration.add_to(app);
  if (!parse(app, args)) return 0;
  check_budget(budget_s);
  calibration.check(means_gpu(device));
  TOK_REQUIRE(dtype == "float32" || dtype == "bfloat16",
              "--dtype \"{}\": wanted float32 or bfloat16", dtype);
  const auto scenes = scenes_of(name);
  TOK_REQUIRE(dims.empty() || scenes.size() == 1, "--dims are those of one op, not of {}", name);
  const auto backend = open_backend({.device = device, .threads = threads});
  const DeviceRates rates = rates_of(*backend);
  const std::string where = device_text(*backend);
  print_header(where, dtype);
  std::string json;
  std::vector<price::TimedOp> timed;
  for (const OpScene* scene : scenes) {
    std::vector<Dims> sizes = is_gpu(*backend) ? scene->of_llama : scene->small;
    if (!dims.empty()) sizes = {dims_of(dims)};
    for (const Dims& size : sizes) {
      for (const OpTime& row : benchmark_scene(*scene, size, dtype_from_name(dtype, "--dtype"),
                                               *backend, rates, budget_s)) {
        if (scene->ops.contains(name) && name != scene->name && row.op != name) continue;
        print_row(row);
        if (scene->group.empty())
          timed.push_back({.op = row.op,
                           .kind = row.kind,
                           .flops = row.flops,
                           .bytes = row.bytes,
                           .seconds = row.seconds});
        json += json_of(row, where, dtype) + "\n";
      }
      std::fflush(stdout);
    }
  }
  fmt::print("{}", json);
  if (!calibration.file.empty()) {
    write_calibration(calibration.file, calibration.machine, where, dtype, timed);
  }
  return 0;
}

}  // namespace tokamak::cli
