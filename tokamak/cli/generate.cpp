#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>

#include <fmt/format.h>

#include "tokamak/cli/devices.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/train/generated_text.h"
#include "tokamak/train/generator.h"

namespace tokamak::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateWords {
  std::string path;
  std::string model;
  std::string tokenizer;
  std::string prompt;
  std::string prompts;  // a file
  std::string dtype = "auto";
  std::string device = "auto";
  std::vector<std::string> stops;
  int64_t seq_len = 0;
  SamplingOptions sampling;
  bool ids_only = false;
  bool no_bos = false;
};

bool parse_words(Args args, GenerateWords& w) {
  CLI::App app("Continues a text with a trained model.", "tokamak generate");
  app.add_option("model", w.path,
                 "Hugging Face folder, checkpoint step-N, llm.c file or safetensors")
      ->required();
  app.add_option("--prompt,-p", w.prompt, "the text to continue; - reads standard input");
  app.add_option("--prompts", w.prompts,
                 "file of prompts: a line each, or JSON lines with \"prompt\" (.jsonl); prints a "
                 "JSON line for each")
      ->excludes("--prompt");
  app.add_option("--max-new-tokens,-n", w.sampling.max_new_tokens, "how many tokens to make")
      ->capture_default_str();
  app.add_option("--temperature,-t", w.sampling.temperature, "0 = the most likely token")
      ->capture_default_str();
  app.add_option("--top-k,-k", w.sampling.top_k, "draw from the k most likely tokens; 0 = all")
      ->capture_default_str();
  app.add_option("--top-p", w.sampling.top_p,
                 "draw from the fewest tokens whose probabilities sum to at least this")
      ->capture_default_str();
  app.add_option("--stop", w.stops, "end before this text; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--seed,-s", w.sampling.seed, "the same seed gives the same text")
      ->capture_default_str();
  app.add_option("--model", w.model, "NAME:FLAVOR where the weights have no config.json");
  app.add_option("--tokenizer", w.tokenizer, "folder or file; bytes; self");
  app.add_option("--dtype", w.dtype,
                 "weights, cache and computation: float32 or bfloat16; auto = float32 on a CPU, "
                 "bfloat16 on a GPU")
      ->capture_default_str();
  app.add_option("--device", w.device, kDeviceHelp)->capture_default_str();
  app.add_option("--seq-len", w.seq_len, "room for prompt and new tokens; 0 = as needed")
      ->capture_default_str();
  app.add_flag("--ids", w.ids_only, "print token ids instead of text");
  app.add_flag("--no-bos", w.no_bos, "do not begin with the tokenizer's BOS");
  if (!parse(app, args)) return false;
  const SamplingOptions& s = w.sampling;
  TOK_REQUIRE(s.max_new_tokens > 0, "--max-new-tokens {}: wanted at least 1", s.max_new_tokens);
  TOK_REQUIRE(s.temperature >= 0.0, "--temperature {}: wanted 0 or more", s.temperature);
  TOK_REQUIRE(s.top_k >= 0, "--top-k {}: wanted 0 or more", s.top_k);
  TOK_REQUIRE(s.top_p > 0.0 && s.top_p <= 1.0, "--top-p {}: wanted more than 0, at most 1",
              s.top_p);
  TOK_REQUIRE(std::find(w.stops.begin(), w.stops.end(), "") == w.stops.end(),
              "--stop: wanted a text, got none");
  return true;
}

// Returns the prompts of a file, by lines; its last line may lack an end.
std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  const std::string text = read_file(path, kSmallFileBytes);
  const bool is_json = path.extension() == ".jsonl" || path.extension() == ".ndjson";
  std::vector<std::string> prompts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (is_json && line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path.string(), prompts.size() + 1);
    prompts.push_back(is_json ? json_member<std::string>(parse_json(line, where), "prompt", where)
                              : std::move(line));
  }
  TOK_REQUIRE(!prompts.empty(), "--prompts {}: no prompt in it", path.string());
  return prompts;
}

std::vector<int32_t> encode(const GenerateWords& w, const ModelFiles& files,
                            const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids;
  if (!w.no_bos && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  tokenizer.encode(prompt, ids);
  const auto largest = std::max_element(ids.begin(), ids.end());
  TOK_REQUIRE(
      ids.empty() || *largest < files.config.vocab_size,
      "{}: the tokenizer has {} ids and makes {} of the prompt, the model's vocabulary ends "
      "at {}: name the model's own with --tokenizer",
      w.tokenizer.empty() ? files.folder.string() : w.tokenizer, tokenizer.vocab_size(), *largest,
      files.config.vocab_size);
  TOK_REQUIRE(!ids.empty(), "the prompt is empty and the tokenizer has no BOS: give --prompt");
  return ids;
}

// Seconds and tokens of all prompts.
struct Speed {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  double prompt_s = 0.0;
  double new_s = 0.0;

  void print() const {
    fmt::print(stderr, "{} tokens of prompt in {:.3f} s, {} new tokens in {:.3f} s", prompt_tokens,
               prompt_s, new_tokens, new_s);
    // The first new token comes with the prompt.
    if (new_s > 0.0) {
      fmt::print(stderr, ": {:.1f} tokens/s", static_cast<double>(new_tokens) / new_s);
    }
    fmt::print(stderr, "\n");
  }
};

class Job {
 public:
  Job(const GenerateWords& words, const Tokenizer& tokenizer, Generator& generator)
      : w_(words), tokenizer_(tokenizer), generator_(generator) {}

  // Continues one prompt; `show` gets ids and text as they are made. Returns why it ended.
  std::string run(const std::vector<int32_t>& prompt, uint64_t seed,
                  const std::function<void(int32_t, const std::string&)>& show) {
    SamplingOptions sampling = w_.sampling;
    sampling.seed = seed;
    GeneratedText text(tokenizer_, prompt, w_.stops);
    int64_t count = 0;
    const auto begin = Clock::now();
    auto first = begin;
    generator_.generate(prompt, sampling, tokenizer_.eos(), [&](int32_t id) {
      if (++count == 1) first = Clock::now();
      show(id, text.add(id));
      return !text.is_stopped();
    });
    if (const std::string rest = text.rest(); !rest.empty()) show(-1, rest);
    if (count == 0) first = Clock::now();
    speed_.prompt_tokens += static_cast<int64_t>(prompt.size());
    speed_.new_tokens += std::max<int64_t>(0, count - 1);
    speed_.prompt_s += std::chrono::duration<double>(first - begin).count();
    speed_.new_s += std::chrono::duration<double>(Clock::now() - first).count();
    if (text.is_stopped()) return "stop";
    return count < sampling.max_new_tokens ? "eos" : "length";
  }

  const Speed& speed() const { return speed_; }

 private:
  const GenerateWords& w_;
  const Tokenizer& tokenizer_;
  Generator& generator_;
  Speed speed_;
};

void stream_one(const GenerateWords& w, const std::vector<int32_t>& ids, Job& job) {
  if (!w.ids_only) fmt::print("{}", w.prompt);
  std::fflush(stdout);
  job.run(ids, w.sampling.seed, [&](int32_t id, const std::string& text) {
    if (!w.ids_only) fmt::print("{}", text);
    if (w.ids_only && id >= 0) fmt::print("{}\n", id);
    std::fflush(stdout);
  });
  if (!w.ids_only) fmt::print("\n");
}

void print_all(const GenerateWords& w, const std::vector<std::string>& prompts,
               const std::vector<std::vector<int32_t>>& ids, Job& job) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::string text;
    std::vector<int32_t> made;
    const std::string end =
        job.run(ids[i], w.sampling.seed + i, [&](int32_t id, const std::string& more) {
          text += more;
          if (id >= 0) made.push_back(id);
        });
    OrderedJson line{{"prompt", prompts[i]}};
    if (w.ids_only) {
      line["ids"] = made;
    } else {
      line["text"] = text;
    }
    line["tokens"] = made.size();
    line["end"] = end;
    fmt::print("{}\n", line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    std::fflush(stdout);
  }
}

}  // namespace

int run_generate(Args args) {
  GenerateWords w;
  if (!parse_words(args, w)) return 0;
  if (w.prompt == "-") w.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  const std::vector<std::string> prompts =
      w.prompts.empty() ? std::vector<std::string>{w.prompt} : read_prompts(w.prompts);
  const ModelFiles files = open_model(w.path, w.model);
  const auto tokenizer = open_tokenizer(w.tokenizer, files.folder);
  std::vector<std::vector<int32_t>> ids;
  size_t longest = 0;
  for (const std::string& prompt : prompts) {
    ids.push_back(encode(w, files, *tokenizer, prompt));
    longest = std::max(longest, ids.back().size());
  }
  const auto needed = static_cast<int64_t>(longest) + w.sampling.max_new_tokens;
  const auto backend = open_backend({.device = w.device});
  Generator generator(files.config, files.parameters, compute_dtype(w.dtype, w.device),
                      w.seq_len > 0 ? w.seq_len : needed, *backend);
  Job job(w, *tokenizer, generator);
  if (w.prompts.empty()) {
    stream_one(w, ids[0], job);
  } else {
    print_all(w, prompts, ids, job);
  }
  job.speed().print();
  return 0;
}

}  // namespace tokamak::cli
