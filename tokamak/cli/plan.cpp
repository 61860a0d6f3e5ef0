#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/fit.h"
#include "tokamak/cli/price.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/pipeline/schedule_picture.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak::cli {
namespace {

// Prints each op once, with the reasons about its variants.
void print_why(const Plan& plan, const Target& target) {
  std::set<std::string> seen;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      Node node;
      node.rules = task.rules;
      node.op = task.op;
      Types in;
      for (const Operand& o : task.in) in.push_back(o.type);
      for (const Operand& o : task.out) node.out.push_back(o.type);
      for (const std::string& line : explain_variants(node, {.in = in, .out = node.out}, target)) {
        if (seen.insert(line).second) fmt::print("{}\n", line);
      }
    }
  }
}

double total_flops(const Plan& plan) {
  double flops = 0.0;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) flops += cost_of(task).flops;
  }
  return flops;
}

// The schedule needs no plan of the model, so this answers at once for any mesh.
void show_schedule(const RunConfig& run) {
  const Degrees& degrees = run.place.degrees;
  const PipelinePlan pipeline = pipeline_plan(run.config, degrees, spec_of(run.config).num_layers,
                                              batch_sizes(run.config, degrees).num_microbatches);
  check_schedule(pipeline.schedule);
  fmt::print("{}\n{}", schedule_text(pipeline.schedule),
             split_text(pipeline.split, pipeline.schedule.rank_of_stage));
}

// Names the verb that replaces a flag: flags are older, and scripts use them. Returns `code`.
int name_verb(std::string_view verb, std::string_view flag, int code) {
  fmt::print(stderr, "note: plan {} is also `tokamak {}`\n", flag, verb);
  return code;
}

}  // namespace

int run_plan(Args args) {
  if (prints_presets(args)) return 0;
  if (const auto words = find_price_words(args)) {
    const int code = print_price(*words);
    if (!words->sweeps.empty()) return name_verb("sweep", "--sweep", code);
    if (words->search) return name_verb("search", "--search", code);
    return name_verb("price", words->preset ? "--preset" : "--cluster", code);
  }
  const auto run = load_run_config(args, "plan", {.source = "none"});
  if (!run) return 0;
  if (run->print_schedule) {
    show_schedule(*run);
    return 0;
  }
  for (const Need& need : run->needs) fmt::print("{}\n", needs_line(need));
  const PlanTarget made_for =
      plan_target({.device = run->config.job.device,
                   .threads = static_cast<int>(run->config.training.threads),
                   .deterministic = run->config.debug.deterministic});
  const ModelSpec spec = spec_of(run->config);
  std::optional<Waiting> waiting("planning");
  const PlannedRun planned(spec, shape_of(run->config, spec, run->place), made_for.target);
  waiting.reset();
  const Plan& plan = planned.plan();
  if (run->print) fmt::print("{}", to_text(plan));
  if (run->why) {
    print_why(plan, made_for.target);
    for (const std::string& note : planned.notes()) fmt::print("{}\n", note);
  }
  fmt::print("{}", made_for.note);
  size_t num_tasks = 0;
  for (const Segment& segment : plan.segments) num_tasks += segment.tasks.size();
  fmt::print(
      "model {} {}: {} parameters\n{} tasks in {} segments, {:.3f} TFLOP a microbatch with its "
      "update\n",
      planned.config().name, planned.config().flavor, count_parameters(planned.config()).total,
      num_tasks, plan.segments.size(), 1e-12 * total_flops(plan));
  fmt::print("memory of one rank, batch {} x {}:\n{}", run->config.training.local_batch_size,
             run->config.training.seq_len, memory_table(planned));
  if (run->check) fmt::print("{}", proof_text(planned, made_for.target));
  return 0;
}

}  // namespace tokamak::cli
