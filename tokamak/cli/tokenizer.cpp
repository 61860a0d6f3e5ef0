#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/cli/console.h"
#include "tokamak/cli/model_files.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/data/cache/megatron_files.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/data/mix.h"
#include "tokamak/data/text_reader.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak::cli {
namespace {

// Reads one JSON object per line with "text", and writes one with "ids" and "decoded".
int run_encode(Args args) {
  CLI::App app(
      "Reads one JSON object per line with \"text\" and writes {\"ids\", \"decoded\"} for each.",
      "tokamak tokenizer encode");
  std::string path;
  bool bos = false;
  bool eos = false;
  app.add_option("tokenizer", path, "folder, tokenizer.json, tokenizer.model; bytes; shakespeare")
      ->required();
  app.add_flag("--bos", bos, "begin with BOS");
  app.add_flag("--eos", eos, "end with EOS");
  if (!parse(app, args)) return 0;
  const auto tokenizer = open_tokenizer(path, {});
  TOK_REQUIRE(!bos || tokenizer->bos(), "--bos: {} has no BOS", path);
  TOK_REQUIRE(!eos || tokenizer->eos(), "--eos: {} has no EOS", path);
  std::ios::sync_with_stdio(false);
  std::string line;
  std::vector<int32_t> ids;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.empty()) continue;
    const std::string what = fmt::format("standard input, line {}", number);
    TOK_REQUIRE(line.find_first_not_of(" \t") == line.find('{'),
                "{}: wanted an object such as {{\"text\": \"a text\"}}, got {}", what, shown(line));
    const auto text = json_member<std::string>(parse_json(line, what), "text", what);
    ids.clear();
    if (bos) ids.push_back(*tokenizer->bos());
    tokenizer->encode(text, ids);
    if (eos) ids.push_back(*tokenizer->eos());
    const Json out{{"ids", ids}, {"decoded", tokenizer->decode(ids)}};
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  return 0;
}

int run_decode(Args args) {
  CLI::App app("Reads token ids, separated by white space, and writes their text.",
               "tokamak tokenizer decode");
  std::string path;
  app.add_option("tokenizer", path, "folder, tokenizer.json, tokenizer.model; bytes; shakespeare")
      ->required();
  if (!parse(app, args)) return 0;
  const auto tokenizer = open_tokenizer(path, {});
  std::vector<int32_t> ids;
  int32_t id = 0;
  while (std::cin >> id) ids.push_back(id);
  TOK_REQUIRE(std::cin.eof(),
              "standard input: wanted token ids, got something else after {} of them", ids.size());
  std::cout << tokenizer->decode(ids);
  return 0;
}

// Weights work only with the tokenizer they were trained with.
void make_tokenizer_folder(const std::filesystem::path& folder) {
  make_folders(folder);
  if (!has_tokenizer(folder)) return;
  for (const std::filesystem::path& file : list_folder(folder)) {
    TOK_REQUIRE(file.extension() != ".safetensors",
                "--out {}: {} was trained with the tokenizer in this folder, which would be "
                "replaced: name another folder",
                folder.string(), file.filename().string());
  }
}

TokenizerFiles learn(const TrainOptions& options, const std::vector<TextSource>& sources) {
  const Waiting waiting("learning the vocabulary");
  BpeTrainer trainer(options);
  for (const TextSource& source : sources) {
    TextReader reader(source.format, source.files, source.column);
    TextPiece piece;
    while (reader.next(piece)) trainer.add(piece.text);
  }
  return trainer.train();
}

int run_train_bpe(Args args) {
  CLI::App app(
      "Learns a byte-level BPE vocabulary and writes tokenizer.json and tokenizer_config.json.",
      "tokamak tokenizer train");
  std::vector<std::string> paths;
  std::string out;
  std::string split = "llama3";
  std::string format = "auto";
  std::string column = "text";
  TrainOptions options;
  app.add_option("text", paths, "files or folders")->required();
  app.add_option("--out,-o", out, "folder to write")->required();
  app.add_option("--vocab-size", options.vocab_size, "ids at most, special ones included")
      ->capture_default_str();
  app.add_option("--split", split, "llama3 or gpt2")->capture_default_str();
  app.add_option("--format", format,
                 "text, or c4 for JSON lines with \"text\"; auto = by the files' names")
      ->capture_default_str();
  app.add_option("--text-column", column, kTextColumnHelp)->capture_default_str();
  if (!parse(app, args)) return 0;
  TOK_REQUIRE(split == "llama3" || split == "gpt2", "--split \"{}\": wanted llama3 or gpt2", split);
  TOK_REQUIRE(format == "auto" || format == "text" || format == "c4",
              "--format \"{}\": wanted auto, text or c4", format);
  options.split = split == "gpt2" ? SplitRule::kGpt2 : SplitRule::kLlama3;
  if (split == "gpt2") {
    options.special_tokens = {"<|endoftext|>"};
    options.bos = options.eos = "<|endoftext|>";
  }
  std::vector<TextSource> sources;
  for (const std::string& path : paths) {
    if (format == "auto") {
      for (TextSource& source : text_sources_by_name(path, column))
        sources.push_back(std::move(source));
    } else {
      sources.push_back(text_source(format, path, column));
    }
  }
  for (const TextSource& source : sources)
    for (const std::string& line : source.remarks) fmt::print(stderr, "{}\n", line);
  make_tokenizer_folder(out);
  const TokenizerFiles files = learn(options, sources);
  files.save(out);
  fmt::print("wrote {}/tokenizer.json with {} ids\n", out, files.parse(out)->vocab_size());
  return 0;
}

void check_megatron(const std::string& prefix, const DataOptions& data) {
  TOK_REQUIRE(data.dataset.starts_with("c4") || data.dataset == "text",
              "--megatron: wanted text of dataset c4 or text, got \"{}\"", data.dataset);
  TOK_REQUIRE(parse_mix(data.path).size() == 1,
              "--megatron: wanted one path, got the mix \"{}\": write its paths one by one",
              data.path);
  for (const char* extension : {".bin", ".idx"}) check_can_write(prefix + extension);
}

int run_cache(Args args) {
  CLI::App app(
      "Builds the complete token cache of a text dataset before a run needs it. Processes that do "
      "so\n"
      "at once, on any hosts that share the cache, divide the files among them.",
      "tokamak tokenizer cache");
  DataOptions data;
  std::string tokenizer_path;
  std::string cache = token_cache_folder("outputs/token_cache").string();
  std::string megatron;
  int threads = 0;
  app.add_option("dataset", data.dataset, "c4 or text")->required();
  app.add_option("path", data.path, "file, folder, or mix \"0.7 A 0.3 B\"")->required();
  app.add_option("--tokenizer", tokenizer_path, "folder or file; bytes; shakespeare")->required();
  app.add_option("--text-column", data.text_column, kTextColumnHelp)->capture_default_str();
  app.add_option("--cache", cache, "where caches live, which runs look into")
      ->capture_default_str();
  app.add_option("--threads", threads, "0 = one for each core")->capture_default_str();
  app.add_option("--megatron", megatron, "then write the tokens to MEGATRON.bin and .idx too");
  if (!parse(app, args)) return 0;
  const auto tokenizer = open_tokenizer(tokenizer_path, {});
  data.tokenizer = tokenizer.get();
  data.vocab_size = tokenizer->vocab_size();
  data.cache_folder = cache;
  data.seq_len = 1;
  if (!megatron.empty()) check_megatron(megatron, data);
  const bool is_live = is_on_terminal(STDERR_FILENO);
  const auto remarks = build_token_cache(
      data, threads,
      [&](const CacheProgress& p) {
        if (!is_live && !p.complete) return;
        fmt::print(stderr, "{}{}: {} tokens, {:.0f} %{}", is_live ? kEraseLine : "", p.source,
                   with_commas(p.tokens), 100.0 * p.share, p.complete ? ", complete\n" : "");
      },
      true);
  for (const std::string& line : remarks) fmt::print(stderr, "{}\n", line);
  if (megatron.empty()) return 0;
  const std::string path = parse_mix(data.path)[0].path;
  const MegatronCounts counts = write_megatron(
      token_cache_of(text_source(data.dataset, path, data.text_column), *tokenizer, cache),
      megatron);
  fmt::print("wrote {0}.bin and {0}.idx: {1} documents, {2} tokens\n", megatron,
             with_commas(counts.documents), with_commas(counts.tokens));
  return 0;
}

}  // namespace

int run_tokenizer(Args args) {
  const std::string what = args.empty() ? "--help" : args[0];
  if (what == "encode") return run_encode(args.subspan(1));
  if (what == "decode") return run_decode(args.subspan(1));
  if (what == "train") return run_train_bpe(args.subspan(1));
  if (what == "cache") return run_cache(args.subspan(1));
  TOK_REQUIRE(what == "--help" || what == "-h",
              "tokamak tokenizer: no \"{}\"; there are encode, decode, train, cache", what);
  fmt::print(
      "usage: tokamak tokenizer encode|decode|train|cache ...; each says more with --help\n");
  return 0;
}

}  // namespace tokamak::cli
