#include "tokamak/tokenizer/train_bpe.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/tokenizer/byte_level.h"
#include "tokamak/tokenizer/pair_counts.h"
#include "tokamak/tokenizer/split.h"

namespace tokamak {

struct StringHash {
  // NOLINTNEXTLINE(readability-identifier-naming): the name the library asks for
  using is_transparent = void;

  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

namespace {

constexpr size_t kMaxWordBytes = 512;
constexpr int64_t kMinCount = 2;
constexpr int kLlama3Digits = 3;

/// The result of training: tokens in the order of their ids, merges in the order of their ranks.
struct Learned {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Returns the bytes in the order of their byte-level characters, as Hugging Face numbers them.
std::vector<uint8_t> bytes_by_char() {
  std::vector<uint8_t> bytes(256);
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  std::ranges::sort(bytes,
                    [](uint8_t a, uint8_t b) { return byte_level_char(a) < byte_level_char(b); });
  return bytes;
}

OrderedJson pre_tokenizer_json(SplitRule rule) {
  OrderedJson byte_level = {{"type", "ByteLevel"},
                            {"add_prefix_space", false},
                            {"trim_offsets", true},
                            {"use_regex", rule == SplitRule::kGpt2}};
  if (rule == SplitRule::kGpt2) return byte_level;
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", kLlama3Pattern}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  OrderedJson sequence = {{"type", "Sequence"}};
  sequence["pretokenizers"] = OrderedJson::array({split, byte_level});
  return sequence;
}

OrderedJson post_processor_json(const TrainOptions& options) {
  if (options.bos.empty()) return nullptr;
  const auto at = std::ranges::find(options.special_tokens, options.bos);
  const OrderedJson special = {{"SpecialToken", {{"id", options.bos}, {"type_id", 0}}}};
  const OrderedJson text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const OrderedJson second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  OrderedJson bos = {{"id", options.bos}};
  bos["ids"] = OrderedJson::array({at - options.special_tokens.begin()});
  bos["tokens"] = OrderedJson::array({options.bos});
  OrderedJson json = {{"type", "TemplateProcessing"}};
  json["single"] = OrderedJson::array({special, text});
  json["pair"] = OrderedJson::array({special, text, second});
  json["special_tokens"][options.bos] = bos;
  return json;
}

OrderedJson model_json(const Learned& learned) {
  OrderedJson vocab = OrderedJson::object();
  // Names are distinct, so this avoids emplace(), which compares each with all earlier ones.
  for (size_t id = 0; id < learned.tokens.size(); ++id) {
    vocab.get_ref<OrderedJson::object_t&>().push_back({learned.tokens[id], id});
  }
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : learned.merges) merges.push_back({left, right});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

std::string tokenizer_json(const TrainOptions& options, const Learned& learned) {
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < options.special_tokens.size(); ++id) {
    added.push_back({{"id", id},
                     {"content", options.special_tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const OrderedJson json = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", added},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", pre_tokenizer_json(options.split)},
                            {"post_processor", post_processor_json(options)},
                            {"decoder",
                             {{"type", "ByteLevel"},
                              {"add_prefix_space", true},
                              {"trim_offsets", true},
                              {"use_regex", true}}},
                            {"model", model_json(learned)}};
  return json.dump(1) + "\n";
}

std::string tokenizer_config_json(const TrainOptions& options) {
  const auto name = [](const std::string& token) {
    return token.empty() ? OrderedJson() : OrderedJson(token);
  };
  const OrderedJson json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"bos_token", name(options.bos)},
                            {"eos_token", name(options.eos)},
                            {"clean_up_tokenization_spaces", false}};
  return json.dump(1) + "\n";
}

void check_special(const TrainOptions& options, std::string_view key, const std::string& token) {
  const auto& tokens = options.special_tokens;
  TOK_REQUIRE(token.empty() || std::ranges::find(tokens, token) != tokens.end(),
              "training a tokenizer: {} \"{}\" is not among the special tokens", key, token);
}

}  // namespace

struct BpeTrainer::Words {
  std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>> counts;

  void add(std::string_view word) {
    const auto it = counts.find(word);
    if (it != counts.end()) {
      ++it->second;
    } else {
      counts.emplace(word, 1);
    }
  }

  /// Sorts by bytes, so that ids do not depend on the order of a hash table.
  std::vector<std::pair<std::string_view, int64_t>> sorted() const {
    std::vector<std::pair<std::string_view, int64_t>> words(counts.begin(), counts.end());
    std::ranges::sort(words);
    return words;
  }
};

BpeTrainer::BpeTrainer(TrainOptions options)
    : options_(std::move(options)), words_(std::make_unique<Words>()) {
  const auto least = static_cast<int64_t>(options_.special_tokens.size()) + 256;
  TOK_REQUIRE(options_.vocab_size >= least && options_.vocab_size < INT32_MAX,
              "training a tokenizer: wanted a vocabulary of at least {} ids (256 bytes and the "
              "special tokens), got {}",
              least, options_.vocab_size);
  check_special(options_, "bos", options_.bos);
  check_special(options_, "eos", options_.eos);
}

BpeTrainer::BpeTrainer(BpeTrainer&&) noexcept = default;
BpeTrainer& BpeTrainer::operator=(BpeTrainer&&) noexcept = default;
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view document) {
  WordSplitter splitter(document, options_.split == SplitRule::kGpt2 ? 0 : kLlama3Digits);
  for (std::string_view word = splitter.next(); !word.empty(); word = splitter.next()) {
    for (; word.size() > kMaxWordBytes; word.remove_prefix(kMaxWordBytes)) {
      words_->add(word.substr(0, kMaxWordBytes));
    }
    words_->add(word);
  }
}

TokenizerFiles BpeTrainer::train() const {
  Learned learned;
  learned.tokens = options_.special_tokens;
  std::vector<int32_t> id_of_byte(256);
  for (const uint8_t byte : bytes_by_char()) {
    id_of_byte[byte] = static_cast<int32_t>(learned.tokens.size());
    const char c = static_cast<char>(byte);
    learned.tokens.push_back(to_byte_level(std::string_view(&c, 1)));
  }
  PairCounts counts;
  std::vector<int32_t> ids;
  for (const auto& [word, count] : words_->sorted()) {
    ids.clear();
    for (const char c : word) ids.push_back(id_of_byte[static_cast<uint8_t>(c)]);
    counts.add_word(ids, count);
  }
  std::unordered_map<std::string, int32_t> id_of;
  for (size_t id = 0; id < learned.tokens.size(); ++id) {
    id_of.emplace(learned.tokens[id], static_cast<int32_t>(id));
  }
  PairCounts::Pair pair{};
  while (static_cast<int64_t>(learned.tokens.size()) < options_.vocab_size &&
         counts.pop(kMinCount, pair)) {
    const std::string& left = learned.tokens[pair.left];
    const std::string& right = learned.tokens[pair.right];
    learned.merges.emplace_back(left, right);
    const auto [it, is_new] =
        id_of.emplace(left + right, static_cast<int32_t>(learned.tokens.size()));
    if (is_new) learned.tokens.push_back(it->first);
    counts.join(pair, it->second);
  }
  return {.tokenizer_json = tokenizer_json(options_, learned),
          .tokenizer_config = tokenizer_config_json(options_)};
}

std::unique_ptr<Tokenizer> TokenizerFiles::parse(std::string_view name) const {
  return parse_tokenizer_json(tokenizer_json, name, {.config = tokenizer_config});
}

void TokenizerFiles::save(const std::filesystem::path& folder) const {
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.json", tokenizer_json);
  write_file_atomic(folder / "tokenizer_config.json", tokenizer_config);
}

TokenizerFiles train_bpe(std::span<const std::string_view> documents, TrainOptions options) {
  BpeTrainer trainer(std::move(options));
  for (const std::string_view document : documents) trainer.add(document);
  return trainer.train();
}

}  // namespace tokamak
