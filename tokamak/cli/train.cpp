#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/run_config.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/train/machine_file.h"
#include "tokamak/train/options.h"

namespace tokamak::cli {
namespace {

void print_log(const std::string& level, const std::string& text) {
  fmt::print("{}{}\n", log_prefix(std::chrono::system_clock::now(), level), text);
  std::fflush(stdout);
}

void dry_run(const RunConfig& run) {
  for (const Need& need : run.needs) fmt::print("{}\n", needs_line(need));
  if (!has_model(run.config)) {
    fmt::print("no memory table: the model's config.json is not here\n");
    return;
  }
  const auto backend =
      cpu::make_backend({.threads = static_cast<int>(run.config.training.threads)});
  const PlannedRun planned(spec_of(run.config), shape_of(run.config), backend->target());
  fmt::print("model {} {}: {} parameters\n", planned.config().name, planned.config().flavor,
             count_parameters(planned.config()).total);
  fmt::print("memory of one rank, batch {} x {}:\n{}", run.config.training.local_batch_size,
             run.config.training.seq_len, memory_table(planned));
}

}  // namespace

int run_train(Args args) {
  const auto run = load_run_config(args, "train");
  if (!run) return 0;
  const Config& c = run->config;
  for (const std::string& note : run->notes) fmt::print(stderr, "note: {}\n", note);
  if (run->dry_run) {
    dry_run(*run);
    return 0;
  }
  if (!run->needs.empty()) {
    std::vector<std::string> lines;
    for (const Need& need : run->needs) lines.push_back(needs_line(need));
    throw Error(fmt::format("{}", fmt::join(lines, "\n")));
  }
  print_log("INFO", fmt::format("Starting job: {}", c.job.description));
  if (c.job.print_config) fmt::print("{}\n", config_json(c));
  if (c.job.save_config_file) {
    make_folders(c.job.dump_folder);
    write_file_atomic(std::filesystem::path(c.job.dump_folder) / *c.job.save_config_file,
                      config_json(c));
  }
  const auto tokenizer = tokenizer_of(c);
  TrainerOptions options = options_of(c, tokenizer.get());
  options.config_digest = config_digest(c);
  options.logging.print = print_log;
  const auto backend = cpu::make_backend({.threads = static_cast<int>(c.training.threads)});
  print_log("INFO", fmt::format("Model {} {} size: {:L} total parameters", options.model.name,
                                options.model.flavor, count_parameters(options.model).total));
  if (const auto machine = load_machine_file(backend->target().threads)) {
    options.logging.peak_flops = machine->gemm_flops(options.shape.training.compute);
  }
  const auto world = make_single_world();
  train(options, *world, *backend);
  return 0;
}

}  // namespace tokamak::cli
