#include "tokamak/cli/sweep.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/report/report_of.h"
#include "tokamak/run/mesh_options.h"
#include "tokamak/run/presets.h"

namespace tokamak::cli {
namespace {

// One value of a sweep.
struct Chosen {
  const Sweep* sweep = nullptr;
  size_t at = 0;

  const std::string& value() const { return sweep->values[at]; }

  std::string assignment() const { return fmt::format("{}={}", sweep->key, value()); }
};

// One value of each sweep.
using Choice = std::vector<Chosen>;

const Chosen* find(const Choice& choice, std::string_view key) {
  const auto found =
      std::ranges::find_if(choice, [&](const Chosen& chosen) { return chosen.sweep->key == key; });
  return found == choice.end() ? nullptr : &*found;
}

std::vector<Choice> choices_of(const std::vector<Sweep>& sweeps) {
  std::vector<Choice> all{{}};
  for (const Sweep& sweep : sweeps) {
    std::vector<Choice> longer;
    for (const Choice& choice : all) {
      for (size_t i = 0; i < sweep.values.size(); ++i) {
        longer.push_back(choice);
        longer.back().push_back({.sweep = &sweep, .at = i});
      }
    }
    all = std::move(longer);
  }
  return all;
}

// A number that no machine takes is a mistake; if only some refuse it, their lines give the reason.
void require_one_takes(const std::vector<price::Machine>& machines, const std::string& assignment,
                       std::string_view option) {
  std::optional<Error> first;
  for (price::Machine machine : machines) {
    try {
      return price::set_number(machine, assignment, option);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  throw Error(*first);
}

class SweepPoints {
 public:
  // Throws Error for faults that do not depend on the mesh: keys, values that cannot be read.
  explicit SweepPoints(const PriceWords& words) : words_(words) {
    std::vector<std::string> clusters{words.cluster};
    for (const Sweep& sweep : words.sweeps) {
      if (sweep.key == "cluster") clusters = sweep.values;
    }
    for (const std::string& cluster : clusters) machines_.push_back(price::load_machine(cluster));
    for (const std::string& set : words.sets) require_one_takes(machines_, set, "--set");
    if (clusters.size() == 1) machine_of(words, clusters[0]);
    check_run_keys(words.rest, "plan");
    for (const Choice& choice : choices_of(words.sweeps)) {
      for (const Chosen& chosen : choice) check(chosen);
    }
  }

  // Throws Error if this machine, this mesh or this batch is impossible.
  PriceRequest request_at(const Choice& choice) const {
    const Chosen* cluster = find(choice, "cluster");
    const Chosen* precision = find(choice, "precision");
    const Chosen* gpus = find(choice, "gpus");
    PricePoint point{
        .machine = machine_of(words_, cluster != nullptr ? cluster->value() : words_.cluster)};
    if (precision != nullptr) point.precision = precision->sweep->precisions[precision->at];
    for (const Chosen& chosen : choice) {
      if (is_word(chosen)) continue;
      if (is_of_machine(chosen)) {
        price::set_number(point.machine, chosen.assignment(), "--sweep");
      } else {
        point.overrides.push_back("--" + chosen.assignment());
      }
    }
    price::validate(point.machine);
    if (gpus != nullptr) {
      scale(*gpus->sweep, gpus->sweep->gpus[gpus->at], point);
    } else {
      set_gpus("--gpus ", *words_.num_gpus, point);
    }
    return request_of(words_, point).value();
  }

 private:
  static bool is_word(const Chosen& chosen) {
    const std::string& key = chosen.sweep->key;
    return key == "cluster" || key == "precision" || key == "gpus";
  }

  bool is_of_machine(const Chosen& chosen) const {
    const std::string& key = chosen.sweep->key;
    const std::string section = key.substr(0, key.find('.') + 1);
    return std::ranges::any_of(machines_, [&](const price::Machine& machine) {
      const std::vector<std::string> keys = price::machine_keys(machine);
      return std::ranges::any_of(
          keys, [&](const std::string& known) { return known.starts_with(section); });
    });
  }

  void check(const Chosen& chosen) const {
    if (is_word(chosen)) return;  // find_price_words() and the constructor have read them
    if (is_of_machine(chosen)) return require_one_takes(machines_, chosen.assignment(), "--sweep");
    std::vector<std::string> args = words_.rest;
    args.push_back("--" + chosen.assignment());
    check_run_keys(args, "plan");
  }

  static void set_gpus(const char* word, int64_t num_gpus, PricePoint& point) {
    point.num_gpus = num_gpus;
    point.gpus_word = fmt::format("{}{}", word, num_gpus);
  }

  // Returns the plan for --gpus or, without it, for the first number of GPUs that makes a mesh. If
  // there is none, throws what is wrong with `num_gpus`.
  PriceRequest base_of(const Sweep& sweep, int64_t num_gpus, const PricePoint& point) const {
    std::optional<Error> why;
    PricePoint base = point;
    for (const int64_t n : words_.num_gpus ? std::vector{*words_.num_gpus} : sweep.gpus) {
      set_gpus(words_.num_gpus ? "--gpus " : "--sweep gpus=", n, base);
      try {
        return request_of(words_, base).value();
      } catch (const Error& error) {
        if (words_.num_gpus || n == num_gpus) why = error;
      }
    }
    throw Error(why.value());
  }

  // The mesh grows in data_parallel_shard_degree; the batch of all ranks grows with it or stays.
  void scale(const Sweep& sweep, int64_t num_gpus, PricePoint& point) const {
    point.overrides.emplace_back("--parallelism.data_parallel_shard_degree=-1");
    const PriceRequest base = base_of(sweep, num_gpus, point);
    const int64_t global = global_batch_size(base.config, base.degrees);
    const int64_t dp = resolve_degrees(base.config.parallelism, num_gpus).dp();
    const int64_t wanted = sweep.is_weak ? global / base.degrees.dp() * dp : global;
    point.overrides.push_back(fmt::format("--training.global_batch_size={}", wanted));
    const bool is_swept = std::ranges::any_of(words_.sweeps, [](const Sweep& other) {
      return key_of(other.key) == "training.local_batch_size";
    });
    if (!is_swept && wanted / dp > 0 && wanted / dp < base.config.training.local_batch_size)
      point.overrides.push_back(fmt::format("--training.local_batch_size={}", wanted / dp));
    set_gpus("--sweep gpus=", num_gpus, point);
  }

  const PriceWords& words_;
  std::vector<price::Machine> machines_;  // without --set
};

std::string one_line(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

// Throws the reason that all lines share, or else that of the first.
[[noreturn]] void fail_without_price(const std::vector<Sweep>& sweeps,
                                     const std::vector<SweepLine>& lines) {
  const SweepLine& first = lines[0];
  const bool is_same = std::ranges::all_of(
      lines, [&](const SweepLine& line) { return line.reason == first.reason; });
  if (is_same) throw Error(first.reason);
  const std::string keys =
      sweeps[0].key + (sweeps.size() > 1 ? fmt::format(", {}", sweeps[1].key) : "");
  fail("--sweep {}: none of {} values has a price; {}: {}", keys, lines.size(),
       fmt::join(first.values, ", "), first.reason);
}

// Returns what was measured of the preset's model and program on its machine, on any number of
// GPUs.
std::vector<price::PublishedPoint> published_points(const PriceWords& words) {
  if (!words.preset || words.sweeps.back().key != "gpus") return {};
  const bool is_other = std::ranges::any_of(words.rest, [](const std::string& word) {
    return key_of(word).starts_with("model.") || key_of(word) == "training.seq_len";
  });
  const Preset& own = find_preset(*words.preset);
  if (is_other || words.cluster != own.cluster) return {};
  const auto model_of = [](const Config& c) {
    return std::tuple(c.model.name, c.model.flavor, c.training.seq_len);
  };
  const auto model = model_of(load_preset(own).config);
  std::vector<price::PublishedPoint> points;
  for (const Preset& p : all_presets()) {
    if (p.cluster != own.cluster || p.precision != own.precision || !(p.step_s || p.tokens_per_s))
      continue;
    const Config config = load_preset(p).config;
    if (model_of(config) != model) continue;
    const auto gpus = static_cast<double>(p.num_gpus);
    const double tokens = static_cast<double>(global_batch_size(
                              config, resolve_degrees(config.parallelism, p.num_gpus))) *
                          static_cast<double>(config.training.seq_len);
    const double rate = p.tokens_per_s ? *p.tokens_per_s : tokens / *p.step_s / gpus;
    points.push_back(
        {.value = gpus,
         .device_tokens_per_s = rate,
         .title = fmt::format("{}: {:.1f} tokens/s/GPU ({})", p.name, rate, p.source)});
  }
  return points;
}

}  // namespace

int print_sweep(const PriceWords& words) {
  const auto asks_for_help = [](const std::string& word) {
    return word == "--help" || word == "-h";
  };
  if (std::ranges::any_of(words.rest, asks_for_help)) {
    load_run_config(words.rest, "plan", {.source = "none"});
    return 0;
  }
  const SweepPoints points(words);
  std::vector<SweepLine> lines;
  std::vector<std::string> unpriced;
  const std::vector<Choice> choices = choices_of(words.sweeps);
  std::optional<Waiting> waiting("pricing");
  for (const Choice& choice : choices) {
    waiting->set(fmt::format("{} of {} priced", lines.size(), choices.size()));
    SweepLine& line = lines.emplace_back();
    for (const Chosen& chosen : choice) line.values.push_back(chosen.value());
    const Chosen* gpus = find(choice, "gpus");
    line.num_gpus = gpus != nullptr ? gpus->sweep->gpus[gpus->at] : *words.num_gpus;
    try {
      const PriceRequest request = points.request_at(choice);
      line.report = report_of(request, price_run(request), words.tokens);
      for (const std::string& said : unpriced_lines(request.config, request.machine)) {
        if (std::ranges::find(unpriced, said) == unpriced.end()) unpriced.push_back(said);
      }
    } catch (const Error& error) {
      line.reason = one_line(error.what());
    }
  }
  waiting.reset();
  if (std::ranges::none_of(lines, [](const SweepLine& l) { return l.report.has_value(); }))
    fail_without_price(words.sweeps, lines);
  for (const std::string& said : unpriced) fmt::print(stderr, "{}\n", said);
  if (words.csv) write_file_atomic(*words.csv, sweep_csv(words.sweeps, lines));
  if (words.html)
    write_file_atomic(*words.html, sweep_html(words.sweeps, lines, published_points(words)));
  fmt::print("{}", words.json ? sweep_json(words.sweeps, lines) : sweep_text(words.sweeps, lines));
  return 0;
}

}  // namespace tokamak::cli
