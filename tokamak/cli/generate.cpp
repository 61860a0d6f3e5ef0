#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/models/hf_config.h"
#include "tokamak/train/generated_text.h"
#include "tokamak/train/generator.h"

namespace tokamak::cli {
namespace {

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
  int64_t batch_size = 8;
  SamplingOptions sampling;
  bool ids_only = false;
  bool no_bos = false;
};

bool parse_words(Args args, GenerateWords& w) {
  CLI::App app("Continues a text with a trained model.", "tokamak generate");
  app.add_option("weights", w.path,
                 "Hugging Face folder, folder of a run, checkpoint step-N or safetensors")
      ->required();
  app.add_option("--prompt,-p", w.prompt, "the text to continue; - reads standard input");
  app.add_option("--prompts", w.prompts,
                 "file of prompts: a line each, or JSON lines with \"prompt\" (.jsonl); prints a "
                 "JSON line for each")
      ->excludes("--prompt");
  app.add_option("--batch-size,-b", w.batch_size,
                 "how many prompts of the file make tokens at once")
      ->capture_default_str();
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
  app.add_option(
         "--seed,-s", w.sampling.seed,
         "the same seed gives the same text; prompts of a file have seeds one after another")
      ->capture_default_str();
  app.add_option("--model", w.model, "NAME:FLAVOR where the weights have no config.json");
  app.add_option("--tokenizer", w.tokenizer, "folder or file; bytes; shakespeare");
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
  TOK_REQUIRE(w.batch_size > 0, "--batch-size {}: wanted at least 1", w.batch_size);
  TOK_REQUIRE(s.temperature >= 0.0, "--temperature {}: wanted 0 or more", s.temperature);
  TOK_REQUIRE(s.top_k >= 0, "--top-k {}: wanted 0 or more", s.top_k);
  TOK_REQUIRE(s.top_p > 0.0 && s.top_p <= 1.0, "--top-p {}: wanted more than 0, at most 1",
              s.top_p);
  TOK_REQUIRE(std::ranges::find(w.stops, "") == w.stops.end(), "--stop: wanted a text, got none");
  return true;
}

// Returns the prompts of a file, by lines; its last line may lack an end.
std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  const std::string text = read_file(path, kSmallFileBytes);
  const bool is_json = path.extension() == ".jsonl" || path.extension() == ".ndjson";
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (is_json && line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), number);
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
  const auto largest = std::ranges::max_element(ids);
  TOK_REQUIRE(
      ids.empty() || *largest < files.config.vocab_size,
      "{}: the tokenizer has {} ids and makes {} of the prompt, the model's vocabulary ends "
      "at {}: name the model's own with --tokenizer",
      w.tokenizer.empty() ? files.folder.string() : w.tokenizer, tokenizer.vocab_size(), *largest,
      files.config.vocab_size);
  TOK_REQUIRE(!ids.empty(), "the prompt is empty and the tokenizer has no BOS: give --prompt");
  return ids;
}

void print(const GenerationTimes& t) {
  fmt::print(stderr, "{} tokens of prompt in {:.3f} s, {} new tokens in {:.3f} s", t.prompt_tokens,
             t.prompt_s, t.new_tokens, t.new_s);
  if (t.new_s > 0.0) {
    fmt::print(stderr, ": {:.1f} tokens/s", static_cast<double>(t.new_tokens) / t.new_s);
    if (t.new_tokens > t.steps)
      fmt::print(stderr, ", {:.1f} texts at once",
                 static_cast<double>(t.new_tokens) / static_cast<double>(t.steps));
  }
  fmt::print(stderr, "\n");
}

// Returns the ids that end a text: the tokenizer's EOS and, if the tokenizer is the model's own,
// all that the model's files name. Chat models have several.
std::vector<int32_t> ends_of_text(const GenerateWords& w, const ModelFiles& files,
                                  const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (tokenizer.eos()) ids.push_back(*tokenizer.eos());
  if (!w.tokenizer.empty()) return ids;
  const std::filesystem::path file = files.folder / "generation_config.json";
  std::vector<int32_t> named;
  if (path_exists(file)) named = parse_eos_ids(read_file(file, kSmallFileBytes), file.string());
  if (named.empty() && !files.config.hf_config.empty())
    named = parse_eos_ids(files.config.hf_config, "config.json");
  ids.insert(ids.end(), named.begin(), named.end());
  return ids;
}

GenerationTimes stream_one(const GenerateWords& w, const Tokenizer& tokenizer,
                           std::span<const int32_t> eos, const std::vector<int32_t>& ids,
                           Generator& generator) {
  if (!w.ids_only) fmt::print("{}", w.prompt);
  std::fflush(stdout);
  GeneratedText text(tokenizer, ids, w.stops);
  const TextEvents events{.token = [&](size_t, int32_t id) {
    const std::string more = text.add(id);
    fmt::print("{}", w.ids_only ? fmt::format("{}\n", id) : more);
    std::fflush(stdout);
    return !text.is_stopped();
  }};
  const Prompt prompt{.tokens = ids, .sampling = w.sampling};
  const GenerationTimes times = generator.generate(std::span(&prompt, 1), eos, events);
  if (!w.ids_only) fmt::print("{}\n", text.rest());
  std::fflush(stdout);  // before the line of times, which goes to stderr
  return times;
}

std::string_view name_of(TextEnd end) {
  switch (end) {
    case TextEnd::kEos:
      return "eos";
    case TextEnd::kLength:
      return "length";
    case TextEnd::kStopped:
      return "stop";
  }
  return "";
}

// Texts that grow at the same time, printed as JSON lines in the order of their prompts.
class Texts {
 public:
  Texts(const GenerateWords& words, const Tokenizer& tokenizer,
        const std::vector<std::string>& prompts, const std::vector<Prompt>& ids)
      : w_(words), tokenizer_(tokenizer), prompts_(prompts), ids_(ids), texts_(prompts.size()) {}

  bool add(size_t i, int32_t id) {
    Text& t = texts_[i];
    if (!t.text) t.text = std::make_unique<GeneratedText>(tokenizer_, ids_[i].tokens, w_.stops);
    t.ids.push_back(id);
    t.made += t.text->add(id);
    return !t.text->is_stopped();
  }

  void end(size_t i, TextEnd why) {
    Text& t = texts_[i];
    if (t.text) t.made += t.text->rest();
    OrderedJson line{{"prompt", prompts_[i]}};
    if (w_.ids_only) {
      line["ids"] = t.ids;
    } else {
      line["text"] = t.made;
    }
    line["tokens"] = t.ids.size();
    line["end"] = name_of(why);
    t = {.line = line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
    for (; printed_ < texts_.size() && !texts_[printed_].line.empty(); ++printed_) {
      fmt::print("{}\n", texts_[printed_].line);
      texts_[printed_] = {};
    }
    std::fflush(stdout);
  }

 private:
  struct Text {
    std::unique_ptr<GeneratedText> text;
    std::vector<int32_t> ids;
    std::string made;
    std::string line;  // once it has ended
  };

  const GenerateWords& w_;
  const Tokenizer& tokenizer_;
  const std::vector<std::string>& prompts_;
  const std::vector<Prompt>& ids_;
  std::vector<Text> texts_;
  size_t printed_ = 0;
};

GenerationTimes print_all(const GenerateWords& w, const Tokenizer& tokenizer,
                          std::span<const int32_t> eos, const std::vector<std::string>& prompts,
                          const std::vector<Prompt>& ids, Generator& generator) {
  Texts texts(w, tokenizer, prompts, ids);
  return generator.generate(ids, eos,
                            {.token = [&](size_t i, int32_t id) { return texts.add(i, id); },
                             .end = [&](size_t i, TextEnd why) { texts.end(i, why); }});
}

}  // namespace

int run_generate(Args args) {
  GenerateWords w;
  if (!parse_words(args, w)) return 0;
  if (w.prompt == "-") w.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  const std::vector<std::string> prompts =
      w.prompts.empty() ? std::vector<std::string>{w.prompt} : read_prompts(w.prompts);
  const ModelFiles files = open_model(w.path, w.model);
  for (const std::string& note : files.notes) fmt::print(stderr, "{}\n", note);
  const auto tokenizer = open_tokenizer(w.tokenizer, files.folder);
  std::vector<Prompt> ids;
  size_t longest = 0;
  for (const std::string& prompt : prompts) {
    ids.push_back({.tokens = encode(w, files, *tokenizer, prompt), .sampling = w.sampling});
    ids.back().sampling.seed += ids.size() - 1;
    longest = std::max(longest, ids.back().tokens.size());
  }
  const std::vector<int32_t> eos = ends_of_text(w, files, *tokenizer);
  const auto needed = static_cast<int64_t>(longest) + w.sampling.max_new_tokens;
  const int64_t made_for = files.config.max_seq_len;
  if (made_for > 0 && needed > made_for && learned_positions(files.config) == 0)
    fmt::print(stderr,
               "up to {} tokens, but the model was made for {}: later ones may make no sense\n",
               needed, made_for);
  const auto backend = open_backend({.device = w.device});
  std::optional<Waiting> waiting("reading the weights");
  Generator generator(files.config, files.parameters, compute_dtype(w.dtype, w.device),
                      w.seq_len > 0 ? w.seq_len : needed, *backend,
                      std::min(w.batch_size, static_cast<int64_t>(prompts.size())));
  waiting.reset();
  print(w.prompts.empty() ? stream_one(w, *tokenizer, eos, ids[0].tokens, generator)
                          : print_all(w, *tokenizer, eos, prompts, ids, generator));
  return 0;
}

}  // namespace tokamak::cli
