#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "tokamak/cli/price.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/core/value.h"
#include "tokamak/run/presets.h"

namespace tokamak::cli {
namespace {

constexpr int64_t kMostGpus = int64_t{1} << 20;

int64_t parse_gpus(const std::string& word, const std::string& text) {
  const auto n = parse_number<int64_t>(text);
  TOK_REQUIRE(n && *n >= 1 && *n <= kMostGpus, "{}{}: wanted a number of GPUs from 1 to {}", word,
              text, kMostGpus);
  return *n;
}

price::Precision parse_precision(const std::string& word, const std::string& text) {
  std::vector<std::string_view> names;
  for (size_t p = 0; p < price::kNumPrecisions; ++p) {
    const auto precision = static_cast<price::Precision>(p);
    if (precision == price::Precision::kFp32) continue;
    if (price::name_of(precision) == lower_case(text)) return precision;
    names.push_back(price::name_of(precision));
  }
  fail("{}{}: wanted {} or {}", word, text, fmt::join(names.begin(), names.end() - 1, ", "),
       names.back());
}

double parse_tokens(const std::string& text) {
  const auto tokens = parse_number<double>(text);
  TOK_REQUIRE(tokens && *tokens > 0.0 && *tokens <= 1e18,
              "--tokens {}: wanted a number above 0 and at most 1e18, as 1e12", text);
  return *tokens;
}

// Parses "gpus=8,16,32", perhaps followed by ",weak" or ",strong".
Sweep parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  TOK_REQUIRE(equals != std::string::npos && equals > 0, "--sweep {}: wanted key=a,b,c", text);
  Sweep sweep{.key = text.substr(0, equals)};
  bool is_scaling_said = false;
  for (size_t begin = equals + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string value = text.substr(begin, end - begin);
    if (sweep.key == "gpus" && (value == "weak" || value == "strong")) {
      TOK_REQUIRE(!is_scaling_said, "--sweep {}: wanted weak or strong once", text);
      is_scaling_said = true;
      sweep.is_weak = value == "weak";
    } else {
      TOK_REQUIRE(!value.empty(), "--sweep {}: wanted key=a,b,c", text);
      if (sweep.key == "gpus") sweep.gpus.push_back(parse_gpus("--sweep gpus=", value));
      if (sweep.key == "precision")
        sweep.precisions.push_back(parse_precision("--sweep precision=", value));
      sweep.values.push_back(value);
    }
    begin = end + 1;
  }
  TOK_REQUIRE(!sweep.values.empty(), "--sweep {}: wanted at least one value", text);
  return sweep;
}

void add_sweep(PriceWords& words, const std::string& text) {
  constexpr size_t kMostSweeps = 2;
  Sweep sweep = parse_sweep(text);
  for (const Sweep& other : words.sweeps)
    TOK_REQUIRE(key_of(other.key) != key_of(sweep.key), "--sweep {}: {} given twice", text,
                sweep.key);
  TOK_REQUIRE(words.sweeps.size() < kMostSweeps,
              "--sweep {}: wanted at most {} sweeps, got a third", text, kMostSweeps);
  words.sweeps.push_back(std::move(sweep));
}

const Sweep* find_sweep(const PriceWords& words, std::string_view key) {
  const auto found =
      std::ranges::find_if(words.sweeps, [&](const Sweep& sweep) { return sweep.key == key; });
  return found == words.sweeps.end() ? nullptr : &*found;
}

// Takes from the preset what the words leave open.
void apply_preset(PriceWords& words) {
  const Preset& preset = find_preset(*words.preset);
  words.rest.push_back("--preset=" + preset.name);
  if (words.cluster.empty()) words.cluster = preset.cluster;
  if (!words.num_gpus) words.num_gpus = preset.num_gpus;
  if (!words.precision) words.precision = parse_precision("--precision ", preset.precision);
}

// A sweep of GPUs sets the shard degree itself.
void refuse_shard_degree(const PriceWords& words) {
  constexpr std::string_view kKey = "parallelism.data_parallel_shard_degree";
  const std::string grows = ": not with --sweep gpus=..., whose mesh grows in it";
  for (const Sweep& sweep : words.sweeps)
    TOK_REQUIRE(key_of(sweep.key) != kKey, "--sweep {}=...{}", sweep.key, grows);
  for (size_t i = 0; i < words.rest.size(); ++i) {
    if (key_of(words.rest[i]) != kKey) continue;
    const size_t equals = words.rest[i].find('=');
    std::string value = i + 1 < words.rest.size() ? words.rest[i + 1] : "";
    if (equals != std::string::npos) value = words.rest[i].substr(equals + 1);
    TOK_REQUIRE(value == "-1", "--{}={}{}", kKey, value, grows);
  }
}

void check_outputs(const std::vector<std::pair<std::string, std::optional<std::string>>>& outputs) {
  std::map<std::filesystem::path, std::string> names;
  for (const auto& [name, path] : outputs) {
    if (!path) continue;
    check_can_write(*path);
    const auto [at, is_new] =
        names.emplace(std::filesystem::weakly_canonical(std::filesystem::absolute(*path)), name);
    TOK_REQUIRE(is_new, "{} {}: {} writes there too: wanted another file", name, *path, at->second);
  }
}

// Listing machines or printing their numbers makes no price, so other words are refused.
void require_alone(const PriceWords& words, const std::vector<std::string>& given) {
  const std::string what = words.numbers ? "--numbers" : "--cluster list";
  constexpr std::string_view kOfMachine[] = {"--cluster", "--gpus",   "--numbers",
                                             "--preset",  "--search", "--set"};
  for (const std::string& name : given) {
    const bool is_of_machine = std::ranges::find(kOfMachine, name) != std::end(kOfMachine);
    TOK_REQUIRE(is_of_machine, "{}: not with {}, which prices nothing", name, what);
  }
}

void check_together(const PriceWords& words, const std::vector<std::string>& given) {
  const auto refuse = [&](std::initializer_list<const char*> others, const std::string& with) {
    for (const char* other : others) {
      const bool is_given = std::ranges::find(given, other) != given.end();
      TOK_REQUIRE(!is_given, "{}: not with {}", other, with);
    }
  };
  if (words.search) {
    refuse({"--trace", "--csv", "--sweep", "--all-ranks", "--tokens"},
           "--search: price the plan that it writes");
  }
  if (!words.sweeps.empty()) refuse({"--trace", "--write"}, "--sweep, which prices many steps");
  if (find_sweep(words, "gpus") != nullptr) refuse_shard_degree(words);
  if (find_sweep(words, "cluster") != nullptr) refuse({"--cluster"}, "--sweep cluster=...");
  if (find_sweep(words, "precision") != nullptr) refuse({"--precision"}, "--sweep precision=...");
  TOK_REQUIRE(!words.csv || !words.sweeps.empty(), "--csv: wanted --sweep with it");
  constexpr std::string_view kOfOnePlan[] = {"--print", "--why", "--print-schedule",
                                             "--world-size"};
  for (const std::string& word : words.rest) {
    for (const std::string_view other : kOfOnePlan) {
      TOK_REQUIRE(word != other && !word.starts_with(fmt::format("{}=", other)),
                  "{}: not with --cluster, which prices the plans of --gpus ranks", other);
    }
  }
  check_outputs({{"--trace", words.trace},
                 {"--html", words.html},
                 {"--csv", words.csv},
                 {"--write", words.write}});
}

}  // namespace

std::string key_of(std::string_view word) {
  if (word.starts_with("--")) word.remove_prefix(2);
  std::string key(word.substr(0, word.find('=')));
  std::ranges::replace(key, '-', '_');
  return key;
}

bool prints_presets(Args args) {
  const auto at = std::ranges::find(args, "--preset");
  const bool is_apart = at != args.end() && at + 1 != args.end() && *(at + 1) == "list";
  if (!is_apart && !has_word(args, "--preset=list")) return false;
  fmt::print("{}", presets_text());
  return true;
}

std::optional<PriceWords> find_price_words(Args args) {
  PriceWords words;
  std::vector<std::string> given;
  using Use = std::function<void(const std::string&)>;
  const std::pair<std::string, Use> valued[] = {
      {"--cluster", [&](const std::string& v) { words.cluster = v; }},
      {"--software",
       [](const std::string& v) {
         fail("--software {}: name it in --cluster, as gb200+torchtitan", v);
       }},
      {"--gpus", [&](const std::string& v) { words.num_gpus = parse_gpus("--gpus ", v); }},
      {"--set", [&](const std::string& v) { words.sets.push_back(v); }},
      {"--precision",
       [&](const std::string& v) { words.precision = parse_precision("--precision ", v); }},
      {"--tokens", [&](const std::string& v) { words.tokens = parse_tokens(v); }},
      {"--trace", [&](const std::string& v) { words.trace = v; }},
      {"--html", [&](const std::string& v) { words.html = v; }},
      {"--csv", [&](const std::string& v) { words.csv = v; }},
      {"--preset", [&](const std::string& v) { words.preset = v; }},
      {"--write", [&](const std::string& v) { words.write = v; }},
      {"--sweep", [&](const std::string& v) { add_sweep(words, v); }}};
  for (size_t i = 0; i < args.size(); ++i) {
    bool is_ours = false;
    for (const auto& [name, use] : valued) {
      const bool is_joined = args[i].rfind(name + "=", 0) == 0;
      if (!is_joined && args[i] != name) continue;
      TOK_REQUIRE(is_joined || i + 1 < args.size(), "{}: wanted a value", name);
      const std::string value = is_joined ? args[i].substr(name.size() + 1) : args[++i];
      TOK_REQUIRE(!value.empty(), "{}: wanted a value", name);
      TOK_REQUIRE(is_joined || !value.starts_with("--"), "{}: wanted a value, got {}", name, value);
      const bool is_again = std::ranges::find(given, name) != given.end();
      TOK_REQUIRE(!is_again || name == "--set" || name == "--sweep", "{} {}: given twice", name,
                  value);
      use(value);
      given.push_back(name);
      is_ours = true;
      break;
    }
    if (is_ours) continue;
    const std::pair<std::string, bool*> flags[] = {{"--json", &words.json},
                                                   {"--all-ranks", &words.all_ranks},
                                                   {"--numbers", &words.numbers},
                                                   {"--search", &words.search}};
    for (const auto& [name, flag] : flags) {
      if (args[i] != name) continue;
      *flag = true;
      given.push_back(name);
      is_ours = true;
    }
    if (!is_ours) words.rest.push_back(args[i]);
  }
  if (words.preset) apply_preset(words);
  const Sweep* clusters = find_sweep(words, "cluster");
  if (clusters != nullptr && words.cluster.empty()) words.cluster = clusters->values[0];
  if (words.cluster.empty()) {
    TOK_REQUIRE(given.empty(), "{}: wanted --cluster NAME with it", given[0]);
    return std::nullopt;
  }
  if (words.cluster == "list" || words.numbers) {
    require_alone(words, given);
    return words;
  }
  TOK_REQUIRE(words.num_gpus || find_sweep(words, "gpus") != nullptr,
              "--cluster {}: wanted --gpus N with it", words.cluster);
  check_together(words, given);
  return words;
}

}  // namespace tokamak::cli
