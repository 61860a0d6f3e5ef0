#include <optional>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/tokenizer/formats/special_tokens.h"
#include "tokamak/tokenizer/formats/vocab_merges.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

std::string read_if_there(const fs::path& path) {
  return path_exists(path) ? read_file(path, kSmallFileBytes) : std::string();
}

// The largest in use have 35 MB.
MappedFile map_tokenizer(const fs::path& path) {
  constexpr int64_t kMostBytes = int64_t{128} << 20;
  MappedFile file(path);
  TOK_REQUIRE(std::ssize(file.bytes()) <= kMostBytes, "{}: {} bytes, wanted at most {}",
              path.string(), file.bytes().size(), kMostBytes);
  return file;
}

struct SideTexts {
  explicit SideTexts(const fs::path& folder)
      : config(read_if_there(folder / "tokenizer_config.json")),
        map(read_if_there(folder / "special_tokens_map.json")),
        added(read_if_there(folder / "added_tokens.json")) {}

  TokenizerSideFiles views() const {
    return {.config = config, .special_tokens_map = map, .added_tokens = added};
  }

  std::string config;
  std::string map;
  std::string added;
};

std::unique_ptr<Tokenizer> load_json(const fs::path& path) {
  const MappedFile file = map_tokenizer(path);
  return parse_tokenizer_json(file.text(), path.string(), SideTexts(path.parent_path()).views());
}

// A tokenizer.model has its own BOS and EOS; the files next to it may name others.
void check_ends(const Tokenizer& tokenizer, const fs::path& path) {
  const SideTexts side(path.parent_path());
  const SpecialTokens named = read_special_tokens(side.views(), path.string());
  const auto check = [&](const char* key, const std::optional<std::string>& wanted,
                         std::optional<int32_t> id) {
    if (!wanted || wanted->empty()) return;
    const std::string own = id ? tokenizer.decode({&*id, 1}) : "none";
    TOK_REQUIRE(
        own == *wanted,
        "tokenizer_config.json next to {}: {} is \"{}\", but that of the model is \"{}\"; "
        "AutoTokenizer.from_pretrained(IN).save_pretrained(OUT) in Python with transformers "
        "writes a tokenizer.json that has it",
        path.string(), key, *wanted, own);
  };
  check("bos_token", named.bos, tokenizer.bos());
  check("eos_token", named.eos, tokenizer.eos());
}

// A SentencePiece model begins with its first piece: the tags of both are newlines.
bool is_sentencepiece(std::string_view bytes) {
  return bytes.size() > 2 && bytes[0] == '\n' && bytes[2] == '\n';
}

std::unique_ptr<Tokenizer> load_model(const fs::path& path) {
  const MappedFile file = map_tokenizer(path);
  auto tokenizer = is_sentencepiece(file.text()) ? parse_sentencepiece(file.text(), path.string())
                                                 : parse_tiktoken(file.text(), path.string());
  check_ends(*tokenizer, path);
  return tokenizer;
}

std::unique_ptr<Tokenizer> load_vocab_and_merges(const fs::path& folder) {
  const MappedFile vocab = map_tokenizer(folder / "vocab.json");
  const MappedFile merges = map_tokenizer(folder / "merges.txt");
  const SideTexts side(folder);
  const JoinedTokenizer joined = join_vocab_and_merges({.vocab = vocab.text(),
                                                        .merges = merges.text(),
                                                        .added_tokens = side.added,
                                                        .config = side.config,
                                                        .special_tokens_map = side.map},
                                                       folder.string());
  return parse_tokenizer_json(joined.json, folder.string(),
                              {.config = joined.config, .special_tokens_map = side.map});
}

constexpr std::string_view kTekken = "tekken.json";

std::unique_ptr<Tokenizer> load_tekken(const fs::path& path) {
  const MappedFile file = map_tokenizer(path);
  auto tokenizer = parse_tekken(file.text(), path.string());
  check_ends(*tokenizer, path);
  return tokenizer;
}

bool has_vocab_and_merges(const fs::path& folder) {
  return path_exists(folder / "vocab.json") && path_exists(folder / "merges.txt");
}

std::optional<fs::path> find_model(const fs::path& folder) {
  for (const fs::path& model :
       {folder / "tokenizer.model", folder / "original" / "tokenizer.model"}) {
    if (path_exists(model)) return model;
  }
  return std::nullopt;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return path_exists(folder / "tokenizer.json") || find_model(folder) ||
         path_exists(folder / kTekken) || has_vocab_and_merges(folder);
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder_or_file) {
  const fs::path& path = folder_or_file;
  if (path == "bytes") return byte_tokenizer();
  TOK_REQUIRE(path_exists(path), "{}: no such tokenizer folder or file", path.string());
  if (!is_folder(path)) {
    if (path.filename() == kTekken) return load_tekken(path);
    return path.extension() == ".json" ? load_json(path) : load_model(path);
  }
  if (path_exists(path / "tokenizer.json")) return load_json(path / "tokenizer.json");
  if (const auto model = find_model(path)) return load_model(*model);
  if (path_exists(path / kTekken)) return load_tekken(path / kTekken);
  if (has_vocab_and_merges(path)) return load_vocab_and_merges(path);
  fail(
      "{}: wanted a folder with tokenizer.json, tokenizer.model or tekken.json, or vocab.json and "
      "merges.txt, found none",
      path.string());
}

}  // namespace tokamak
