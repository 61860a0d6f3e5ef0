// vocab.json with merges.txt: the files of GPT-2's and Qwen 2's tokenizers before tokenizer.json.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// The texts of a folder's files, empty where a file is absent.
struct VocabMergesFiles {
  std::string_view vocab;
  std::string_view merges;
  std::string_view added_tokens;
  std::string_view config;
  std::string_view special_tokens_map;
};

struct JoinedTokenizer {
  std::string json;    ///< the tokenizer.json that transformers makes of the files
  std::string config;  ///< tokenizer_config.json with the ends of documents that it leaves out
};

/// Throws Error that begins with `folder` and names the file.
JoinedTokenizer join_vocab_and_merges(const VocabMergesFiles& files, std::string_view folder);

}  // namespace tokamak
