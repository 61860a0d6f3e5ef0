#include <algorithm>
#include <iostream>
#include <iterator>

#include <fmt/format.h>

#include "tokamak/cli/devices.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/train/generator.h"

namespace tokamak::cli {

int run_generate(Args args) {
  CLI::App app("Continues a text with a trained model.", "tokamak generate");
  std::string path;
  std::string model;
  std::string tokenizer_path;
  std::string prompt;
  std::string dtype = "float32";
  std::string device = "auto";
  int64_t seq_len = 0;
  SamplingOptions sampling;
  bool ids_only = false;
  bool no_bos = false;
  app.add_option("model", path, "Hugging Face folder, checkpoint step-N, llm.c file or safetensors")
      ->required();
  app.add_option("--prompt,-p", prompt, "the text to continue; - reads standard input");
  app.add_option("--max-new-tokens,-n", sampling.max_new_tokens, "how many tokens to make")
      ->capture_default_str();
  app.add_option("--temperature,-t", sampling.temperature, "0 = the most likely token")
      ->capture_default_str();
  app.add_option("--top-k,-k", sampling.top_k, "0 = all")->capture_default_str();
  app.add_option("--seed,-s", sampling.seed, "the same seed gives the same text")
      ->capture_default_str();
  app.add_option("--model", model, "NAME:FLAVOR where the weights have no config.json");
  app.add_option("--tokenizer", tokenizer_path, "folder or file; bytes; self");
  app.add_option("--dtype", dtype, "compute in float32 or bfloat16")->capture_default_str();
  app.add_option("--device", device, kDeviceHelp)->capture_default_str();
  app.add_option("--seq-len", seq_len, "room for prompt and new tokens; 0 = as needed")
      ->capture_default_str();
  app.add_flag("--ids", ids_only, "print token ids instead of text");
  app.add_flag("--no-bos", no_bos, "do not begin with the tokenizer's BOS");
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(sampling.max_new_tokens > 0, "--max-new-tokens {}: wanted at least 1",
              sampling.max_new_tokens);
  TOK_REQUIRE(sampling.temperature >= 0.0, "--temperature {}: wanted 0 or more",
              sampling.temperature);
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});

  const ModelFiles files = open_model(path, model);
  const auto tokenizer = open_tokenizer(tokenizer_path, files.folder);
  std::vector<int32_t> ids;
  if (!no_bos && tokenizer->bos()) ids.push_back(*tokenizer->bos());
  tokenizer->encode(prompt, ids);
  const auto largest = std::max_element(ids.begin(), ids.end());
  TOK_REQUIRE(
      ids.empty() || *largest < files.config.vocab_size,
      "{}: the tokenizer has {} ids and makes {} of the prompt, the model's vocabulary ends "
      "at {}: name the model's own with --tokenizer",
      tokenizer_path.empty() ? files.folder.string() : tokenizer_path, tokenizer->vocab_size(),
      *largest, files.config.vocab_size);
  TOK_REQUIRE(!ids.empty(), "the prompt is empty and the tokenizer has no BOS: give --prompt");
  const auto needed = static_cast<int64_t>(ids.size()) + sampling.max_new_tokens;
  const auto backend = open_backend({.device = device});
  Generator generator(files.config, files.parameters, dtype_from_name(dtype, "--dtype"),
                      seq_len > 0 ? seq_len : needed, *backend);
  if (!ids_only) fmt::print("{}", prompt);
  // The text of a token may depend on those before it: a decoder may drop the first space.
  std::vector<int32_t> text_ids = ids;
  size_t printed = tokenizer->decode(ids).size();
  generator.generate(ids, sampling, tokenizer->eos(), [&](int32_t id) {
    if (ids_only) {
      fmt::print("{}\n", id);
    } else if (id < tokenizer->vocab_size()) {
      text_ids.push_back(id);
      const std::string text = tokenizer->decode(text_ids);
      fmt::print("{}", std::string_view(text).substr(std::min(printed, text.size())));
      printed = text.size();
    }
    std::fflush(stdout);
  });
  if (!ids_only) fmt::print("\n");
  return 0;
}

}  // namespace tokamak::cli
