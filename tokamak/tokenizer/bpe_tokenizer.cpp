#include "tokamak/tokenizer/bpe_tokenizer.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/word_cache.h"

namespace tokamak {
namespace {

/// Buffers for longer words are freed after use.
constexpr size_t kMaxKeptWord = size_t{1} << 21U;

struct Scratch {
  WordCache cache;
  BpeScratch bpe;
};

/// Lends each encoding thread a Scratch, so that caches stay warm from one call to the next.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }

  void give(std::unique_ptr<Scratch> scratch) {
    if (scratch->bpe.symbols.capacity() > kMaxKeptWord) scratch->bpe = {};
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

/// Reserves capacity for `more` ids and keeps growth amortised.
void grow(std::vector<int32_t>& ids, size_t more) {
  if (ids.capacity() - ids.size() < more) {
    ids.reserve(std::max(ids.size() + more, ids.capacity() * 2));
  }
}

/// Appends the ids of words to `ids`.
class WordSink {
 public:
  WordSink(const Bpe& bpe, Scratch& scratch, std::vector<int32_t>& ids)
      : bpe_(bpe), scratch_(scratch), ids_(ids) {}

  /// Says that the next words lie in `text`.
  void set_text(std::string_view text) { end_ = text.data() + text.size(); }

  const char* text_end() const { return end_; }

  void add(std::string_view word) {
    if (word.size() > WordCache::kMaxBytes) return bpe_.encode_word(word, scratch_.bpe, ids_);
    bool hit = false;
    WordCache::Entry& entry = scratch_.cache.find(word, end_, hit);
    if (hit) {
      if (entry.num_ids == 1) return ids_.push_back(entry.ids[0]);
      ids_.insert(ids_.end(), entry.ids, entry.ids + entry.num_ids);
      return;
    }
    const size_t before = ids_.size();
    bpe_.encode_word(word, scratch_.bpe, ids_);
    const size_t count = ids_.size() - before;
    if (count <= WordCache::kMaxIds) {
      scratch_.cache.put(entry, word.size(), ids_.data() + before, count);
    }
  }

 private:
  const Bpe& bpe_;
  Scratch& scratch_;
  std::vector<int32_t>& ids_;
  const char* end_ = nullptr;
};

template <class OnWord>
void split_by(const KnownRule& rule, std::string_view text, OnWord&& on_word) {
  WordSplitter splitter(text, rule.max_digits);
  for (std::string_view word = splitter.next(); !word.empty(); word = splitter.next()) {
    on_word(word);
  }
}

template <class OnWord>
void split_by(const PatternRule& rule, std::string_view text, OnWord&& on_word) {
  RegexSplitter::Match match;
  size_t done = 0;
  const auto gap = [&](size_t end) {
    if (rule.keep_gaps && done < end) on_word(text.substr(done, end - done));
  };
  while (rule.splitter.next(text, match)) {
    gap(match.begin);
    if (rule.keep_matches) on_word(text.substr(match.begin, match.end - match.begin));
    done = match.end;
  }
  gap(text.size());
}

template <class OnWord>
void split_by(const DigitsRule& rule, std::string_view text, OnWord&& on_word) {
  const uint8_t* flags = unicode_flags();
  const char* end = text.data() + text.size();
  size_t begin = 0;
  bool in_number = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint code = decode_utf8(text.data() + at, end);
    const bool number = (flags[code.value] & kNumber) != 0;
    if (at > begin && (number != in_number || (number && rule.individual))) {
      on_word(text.substr(begin, at - begin));
      begin = at;
    }
    in_number = number;
    at += code.bytes;
  }
  if (begin < text.size()) on_word(text.substr(begin));
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeDefinition definition)
      : definition_(std::move(definition)),
        early_(tokens_where(definition_.added_tokens, false)),
        late_(tokens_where(definition_.added_tokens, true)) {}

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::unique_ptr<Scratch> scratch = pool_.take();
    grow(ids, text.size() / 3);
    WordSink sink(definition_.bpe, *scratch, ids);
    sink.set_text(text);
    const auto on_token = [&ids](int32_t id) { ids.push_back(id); };
    early_.split(
        text,
        [&](std::string_view piece) {
          late_.split(
              piece, [&](std::string_view words) { split_words(0, words, sink); }, on_token);
        },
        on_token);
    pool_.give(std::move(scratch));
  }

  std::string decode(std::span<const int32_t> ids) const override {
    const Vocabulary& vocabulary = definition_.bpe.vocabulary;
    std::string out;
    out.reserve(ids.size() * 4);
    for (const int32_t id : ids) {
      TOK_REQUIRE(id >= 0 && id < vocabulary.end_id(), "{}: wanted a token id below {}, got {}",
                  definition_.name, vocabulary.end_id(), id);
      out += vocabulary.bytes_of(id);
    }
    return out;
  }

  int64_t vocab_size() const override { return definition_.bpe.vocabulary.end_id(); }

  std::optional<int32_t> bos() const override { return definition_.bos; }

  std::optional<int32_t> eos() const override { return definition_.eos; }

  uint64_t hash() const override { return definition_.hash; }

 private:
  static std::vector<AddedToken> tokens_where(const std::vector<AddedToken>& tokens,
                                              bool normalized) {
    std::vector<AddedToken> out;
    for (const AddedToken& token : tokens) {
      if (token.normalized == normalized) out.push_back(token);
    }
    return out;
  }

  void split_words(size_t rule_index, std::string_view text, WordSink& sink) const {
    if (rule_index == definition_.rules.size()) return sink.add(text);
    const WordRule& rule = definition_.rules[rule_index];
    if (std::holds_alternative<PrefixSpaceRule>(rule)) {
      return add_prefix_space(rule_index, text, sink);
    }
    const bool last = rule_index + 1 == definition_.rules.size();
    const auto on_word = [&](std::string_view word) {
      if (last) return sink.add(word);
      split_words(rule_index + 1, word, sink);
    };
    if (const auto* known = std::get_if<KnownRule>(&rule)) return split_by(*known, text, on_word);
    if (const auto* digits = std::get_if<DigitsRule>(&rule)) {
      return split_by(*digits, text, on_word);
    }
    split_by(std::get<PatternRule>(rule), text, on_word);
  }

  void add_prefix_space(size_t rule_index, std::string_view text, WordSink& sink) const {
    if (text.empty() || text.front() == ' ') return split_words(rule_index + 1, text, sink);
    const std::string spaced = " " + std::string(text);
    const std::string_view outer(text.data(), static_cast<size_t>(sink.text_end() - text.data()));
    sink.set_text(spaced);
    split_words(rule_index + 1, spaced, sink);
    sink.set_text(outer);
  }

  BpeDefinition definition_;
  AddedTokenFinder early_;
  AddedTokenFinder late_;
  mutable ScratchPool pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition) {
  return std::make_unique<BpeTokenizer>(std::move(definition));
}

}  // namespace tokamak
