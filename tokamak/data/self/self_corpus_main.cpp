// Build tool: learns a tokenizer from the repository's text and packs both.
//   tokamak_self_corpus SOURCE_FOLDER OUT_FILE

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/random.h"
#include "tokamak/data/self/self_corpus.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabSize = 2048;
constexpr int64_t kMostDigits = 4;
constexpr std::array<std::string_view, 8> kFolders{"tokamak", "docs",  "tests", "tools",
                                                   "cmake",   "bench", "fuzz",  "configs"};
constexpr std::array<std::string_view, 10> kExtensions{".h",    ".cpp",   ".cu", ".cuh", ".md",
                                                       ".toml", ".cmake", ".py", ".sh",  ".def"};

struct Document {
  uint64_t order;
  std::string name;
  std::string text;
};

bool is_wanted(const fs::path& path) {
  const std::string extension = path.extension().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end() ||
         path.filename() == "CMakeLists.txt";
}

bool is_prose_or_code(const std::string& text) {
  const auto digits =
      std::count_if(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return !text.empty() && digits * kMostDigits < static_cast<int64_t>(text.size());
}

void add(std::vector<Document>& documents, const fs::path& source, const fs::path& path) {
  const std::string name = path.lexically_relative(source).generic_string();
  std::string text = read_file(path);
  if (!is_prose_or_code(text)) return;
  documents.push_back({.order = stream_of(name), .name = name, .text = std::move(text)});
}

std::vector<Document> collect(const fs::path& source) {
  std::vector<Document> documents;
  for (const auto& entry : fs::directory_iterator(source)) {
    if (entry.is_regular_file() && is_wanted(entry.path())) add(documents, source, entry.path());
  }
  for (const std::string_view folder : kFolders) {
    if (!fs::is_directory(source / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(source / folder)) {
      if (entry.is_regular_file() && is_wanted(entry.path())) add(documents, source, entry.path());
    }
  }
  std::sort(documents.begin(), documents.end(), [](const Document& a, const Document& b) {
    return std::tie(a.order, a.name) < std::tie(b.order, b.name);
  });
  return documents;
}

SelfCorpus make_corpus(const fs::path& source) {
  const std::vector<Document> documents = collect(source);
  BpeTrainer trainer({.vocab_size = kVocabSize});
  for (const Document& document : documents) trainer.add(document.text);
  const TokenizerFiles files = trainer.train();
  const auto tokenizer = files.parse("the corpus' own tokenizer");
  SelfCorpus corpus{.tokenizer_json = files.tokenizer_json,
                    .tokenizer_config = files.tokenizer_config,
                    .tokens = {},
                    .num_documents = static_cast<int64_t>(documents.size())};
  std::vector<int32_t> ids;
  for (const Document& document : documents) {
    ids.assign(1, tokenizer->bos().value());
    tokenizer->encode(document.text, ids);
    ids.push_back(tokenizer->eos().value());
    for (const int32_t id : ids) corpus.tokens.push_back(static_cast<uint16_t>(id));
  }
  return corpus;
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  try {
    TOK_REQUIRE(argc == 3, "usage: tokamak_self_corpus SOURCE_FOLDER OUT_FILE");
    const std::string packed = tokamak::pack_self_corpus(tokamak::make_corpus(argv[1]));
    tokamak::write_file_atomic(argv[2], packed);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokamak_self_corpus: %s\n", error.what());
    return 2;
  }
}
