#include "tokamak/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/byte_level.h"
#include "tokamak/tokenizer/word_cache.h"

namespace tokamak {
namespace {

constexpr std::string_view kMetaspace = "\u2581";

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

  /// Where the next words lie.
  struct Place {
    const char* end = nullptr;    ///< of the buffer
    const char* begin = nullptr;  ///< of the whole text, where it lies in the buffer
  };

  /// Moves to another buffer and returns the place before.
  Place move_to(std::string_view text, bool begins_text) {
    return std::exchange(
        place_, {.end = text.data() + text.size(), .begin = begins_text ? text.data() : nullptr});
  }

  void move_to(const Place& place) { place_ = place; }

  /// Returns whether the whole text begins with `word`.
  bool is_first(std::string_view word) const { return word.data() == place_.begin; }

  void add(std::string_view word) {
    if (word.size() > WordCache::kMaxBytes) return bpe_.encode_word(word, scratch_.bpe, ids_);
    bool hit = false;
    WordCache::Entry& entry = scratch_.cache.find(word, place_.end, hit);
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
  Place place_;
};

template <class OnWord>
void split_by(const KnownRule& rule, std::string_view text, OnWord&& on_word) {
  WordSplitter splitter(text, rule.max_digits);
  for (std::string_view word = splitter.next(); !word.empty(); word = splitter.next()) {
    on_word(word);
  }
}

// Joins the parts of a text, matches and gaps, to words.
class PartJoiner {
 public:
  explicit PartJoiner(MatchedParts matches) : matches_(matches) {}

  // Returns the word that ends before the part, or nothing. REQUIRES: parts come in order.
  std::string_view add(std::string_view part, bool is_match) {
    const bool joins = joins_last(is_match);
    was_match_ = is_match;
    if (joins) {
      word_ = {word_.data(), word_.size() + part.size()};
      return {};
    }
    return std::exchange(word_, part);
  }

  std::string_view last() const { return word_; }

 private:
  bool joins_last(bool is_match) const {
    if (word_.empty()) return false;
    if (matches_ == MatchedParts::kWithPrevious) return is_match && !was_match_;
    if (matches_ == MatchedParts::kWithNext) return was_match_ && !is_match;
    return matches_ == MatchedParts::kContiguous && is_match == was_match_;
  }

  MatchedParts matches_;
  std::string_view word_;
  bool was_match_ = false;
};

// Calls on_part(part, is_match) for a pattern's matches and the gaps between them. An empty match
// cuts the text.
template <class OnPart>
void for_each_part(const PatternRule& rule, std::string_view text, OnPart&& on_part) {
  RegexSplitter::Match match;
  size_t done = 0;
  const auto gap = [&](size_t end) {
    if (done < end) on_part(text.substr(done, end - done), rule.inverted);
  };
  while (rule.splitter.next(text, match, true)) {
    gap(match.begin);
    on_part(text.substr(match.begin, match.end - match.begin), !rule.inverted);
    done = match.end;
  }
  gap(text.size());
}

template <class OnWord>
void split_by(const PatternRule& rule, std::string_view text, OnWord&& on_word) {
  if (rule.matches == MatchedParts::kRemoved) {
    for_each_part(rule, text, [&](std::string_view part, bool is_match) {
      if (!is_match) on_word(part);
    });
    return;
  }
  PartJoiner joiner(rule.matches);
  for_each_part(rule, text, [&](std::string_view part, bool is_match) {
    const std::string_view word = joiner.add(part, is_match);
    if (!word.empty()) on_word(word);
  });
  if (!joiner.last().empty()) on_word(joiner.last());
}

// Cuts before each `mark`.
template <class OnWord>
void split_before(std::string_view mark, std::string_view text, OnWord&& on_word) {
  size_t begin = 0;
  for (size_t at = text.find(mark, mark.size()); at != std::string_view::npos;
       at = text.find(mark, at + mark.size())) {
    if (at == begin) continue;
    on_word(text.substr(begin, at - begin));
    begin = at;
  }
  if (begin < text.size()) on_word(text.substr(begin));
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
        late_(tokens_where(definition_.added_tokens, true)),
        cut_(safe_cut(definition_)),
        spells_bytes_(spells_bytes(definition_.rules)) {}

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::unique_ptr<Scratch> scratch = pool_.take();
    grow(ids, text.size() / 3);
    WordSink sink(definition_.bpe, *scratch, ids);
    sink.move_to(text, true);
    const auto on_token = [&ids](int32_t id) { ids.push_back(id); };
    early_.split(
        text,
        [&](std::string_view piece) {
          in_new_text(definition_.normalizer, piece, sink, [&](std::string_view normal) {
            late_.split(
                normal, [&](std::string_view words) { split_words(0, words, sink); }, on_token);
          });
        },
        on_token);
    pool_.give(std::move(scratch));
  }

  std::string decode(std::span<const int32_t> ids) const override {
    const Vocabulary& vocabulary = definition_.bpe.vocabulary;
    for (const int32_t id : ids) {
      TOK_REQUIRE(id >= 0 && id < vocabulary.end_id(), "{}: wanted a token id below {}, got {}",
                  definition_.name, vocabulary.end_id(), id);
    }
    if (definition_.decoder) {
      std::vector<std::string> tokens;
      for (const int32_t id : ids) {
        if (vocabulary.has(id)) tokens.emplace_back(text_of(id));
      }
      return join_tokens(std::move(tokens), *definition_.decoder);
    }
    std::string out;
    out.reserve(ids.size() * 4);
    for (const int32_t id : ids) out += text_of(id);
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

  std::string_view text_of(int32_t id) const {
    if (!definition_.decoded.empty()) {
      const auto it = definition_.decoded.find(id);
      if (it != definition_.decoded.end()) return it->second;
    }
    return definition_.bpe.vocabulary.bytes_of(id);
  }

  // Returns the mark of SentencePiece's words if no token reaches over one from another character,
  // so that words may be cut before it and found in the cache. Else returns nothing.
  static std::string_view safe_cut(const BpeDefinition& definition) {
    const Bpe& bpe = definition.bpe;
    if (!bpe.of_characters || bpe.whole_words_first || bpe.vocabulary.find(kMetaspace) < 0)
      return {};
    for (int32_t id = 0; id < bpe.vocabulary.end_id(); ++id) {
      const std::string_view token = bpe.vocabulary.bytes_of(id);
      size_t marks = 0;
      while (token.substr(marks).starts_with(kMetaspace)) marks += kMetaspace.size();
      if (token.find(kMetaspace, marks) != std::string_view::npos) return {};
    }
    return kMetaspace;
  }

  // Calls `then` with the text as the normalizer makes it.
  template <class Then>
  static void in_new_text(const Normalizer& normalizer, std::string_view text, WordSink& sink,
                          Then&& then) {
    if (normalizer.empty()) return then(text);
    const std::string made = normalizer.apply(text);
    in_buffer(made, sink.is_first(text), sink, then);
  }

  template <class Then>
  static void in_buffer(const std::string& buffer, bool begins_text, WordSink& sink, Then&& then) {
    const WordSink::Place outer = sink.move_to(buffer, begins_text);
    then(std::string_view(buffer));
    sink.move_to(outer);
  }

  static bool spells_bytes(const std::vector<WordRule>& rules) {
    return std::ranges::any_of(
        rules, [](const WordRule& rule) { return std::holds_alternative<SpelledBytesRule>(rule); });
  }

  // Cuts before each mark that follows another character: runs of marks may be tokens.
  void add_word(std::string_view word, WordSink& sink) const {
    if (spells_bytes_) {
      std::string bytes;
      TOK_CHECK(from_byte_level(word, bytes), "a word is not spelled in the byte-level alphabet");
      return in_buffer(bytes, false, sink, [&](std::string_view made) { sink.add(made); });
    }
    if (cut_.empty()) return sink.add(word);
    size_t begin = 0;
    bool after_mark = true;
    for (size_t at = 0; at < word.size();) {
      const bool is_mark = word.substr(at).starts_with(cut_);
      if (is_mark && !after_mark) {
        sink.add(word.substr(begin, at - begin));
        begin = at;
      }
      after_mark = is_mark;
      at += is_mark ? cut_.size() : 1;
    }
    if (begin < word.size()) sink.add(word.substr(begin));
  }

  void split_words(size_t rule_index, std::string_view text, WordSink& sink) const {
    if (rule_index == definition_.rules.size()) return add_word(text, sink);
    const WordRule& rule = definition_.rules[rule_index];
    const bool last = rule_index + 1 == definition_.rules.size();
    const auto on_word = [&](std::string_view word) {
      if (last) return add_word(word, sink);
      split_words(rule_index + 1, word, sink);
    };
    if (std::holds_alternative<PrefixSpaceRule>(rule)) {
      if (text.empty() || text.front() == ' ') return on_word(text);
      return in_buffer(" " + std::string(text), sink.is_first(text), sink, on_word);
    }
    if (std::holds_alternative<SpelledBytesRule>(rule))
      return in_buffer(to_byte_level(text), sink.is_first(text), sink, on_word);
    if (const auto* metaspace = std::get_if<MetaspaceRule>(&rule)) {
      return in_buffer(marked(*metaspace, text, sink.is_first(text)), sink.is_first(text), sink,
                       [&](std::string_view words) {
                         if (!metaspace->splits) return on_word(words);
                         split_before(metaspace->replacement, words, on_word);
                       });
    }
    if (const auto* known = std::get_if<KnownRule>(&rule)) return split_by(*known, text, on_word);
    if (const auto* digits = std::get_if<DigitsRule>(&rule)) {
      return split_by(*digits, text, on_word);
    }
    split_by(std::get<PatternRule>(rule), text, on_word);
  }

  static std::string marked(const MetaspaceRule& rule, std::string_view text, bool is_first) {
    using Prepend = MetaspaceRule::Prepend;
    std::string out = replace_all(text, " ", rule.replacement);
    const bool prepends =
        rule.prepend == Prepend::kAlways || (rule.prepend == Prepend::kFirst && is_first);
    return prepends && !out.starts_with(rule.replacement) ? rule.replacement + out : out;
  }

  BpeDefinition definition_;
  AddedTokenFinder early_;
  AddedTokenFinder late_;
  std::string_view cut_;
  bool spells_bytes_;
  mutable ScratchPool pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition) {
  return std::make_unique<BpeTokenizer>(std::move(definition));
}

}  // namespace tokamak
