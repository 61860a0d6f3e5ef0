#include "tokamak/data/scored_rows.h"

#include <algorithm>
#include <utility>

#include "tokamak/core/error.h"

namespace tokamak {

ScoredRows::ScoredRows(const TextSource& text, const Tokenizer& tokenizer,
                       const ScoringOptions& options)
    : reader_(std::in_place, text.format, text.files, text.column),
      tokenizer_(&tokenizer),
      options_(options),
      name_(text.name) {
  TOK_CHECK(options_.seq_len > 0 && options_.stride > 0 && options_.stride <= options_.seq_len);
}

ScoredRows::ScoredRows(std::unique_ptr<TokenSource> tokens, const ScoringOptions& options)
    : tokens_(std::move(tokens)), options_(options), name_(tokens_->name()) {
  TOK_CHECK(options_.seq_len > 0 && options_.stride > 0 && options_.stride <= options_.seq_len);
  TOK_CHECK(options_.by == ScoreBy::kWindow && tokens_->size());
}

Batch ScoredRows::next(int64_t rows) {
  const int64_t S = options_.seq_len;
  Batch batch{.tokens = std::vector<int32_t>(rows * S, 0),
              .labels = std::vector<int32_t>(rows * S, kIgnoreIndex),
              .rows = rows,
              .seq_len = S};
  while (batch.valid_rows < rows &&
         next_row(std::span(batch.tokens).subspan(batch.valid_rows * S, S),
                  std::span(batch.labels).subspan(batch.valid_rows * S, S))) {
    ++batch.valid_rows;
  }
  return batch.valid_rows > 0 ? batch : Batch{};
}

void ScoredRows::push(int32_t id) {
  TOK_REQUIRE(id >= 0 && id < options_.vocab_size,
              "{}: the tokenizer makes id {} of the text, the model's vocabulary ends at {}: name "
              "the model's own with --tokenizer",
              name_, id, options_.vocab_size);
  ids_.push_back(id);
}

// Adds the next piece of the data to the sequence, or ends the sequence.
void ScoredRows::read_piece() {
  if (tokens_ != nullptr) {
    read_tokens();
  } else {
    read_text();
  }
}

void ScoredRows::read_tokens() {
  constexpr int64_t kPiece = 4096;
  const int64_t count = std::min(kPiece, *tokens_->size() - tokens_read_);
  if (count == 0) {
    is_done_ = at_end_ = true;
    return;
  }
  piece_ids_.resize(count);
  tokens_->read(tokens_read_, piece_ids_);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = piece_ids_[i];
    TOK_REQUIRE(id >= 0 && id < options_.vocab_size, "{}, the model's vocabulary ends at {}",
                tokens_->describe(tokens_read_ + i, id), options_.vocab_size);
    ids_.push_back(id);
  }
  tokens_read_ += count;
}

void ScoredRows::read_text() {
  const bool by_document = options_.by == ScoreBy::kDocument;
  if (!reader_->next(piece_)) {
    is_done_ = at_end_ = true;
    return;
  }
  const auto bos = tokenizer_->bos();
  const auto eos = tokenizer_->eos();
  if (piece_.begins) {
    if (bos) push(*bos);
    if (!bos && by_document && eos) push(*eos);
  }
  piece_ids_.clear();
  tokenizer_->encode(piece_.text, piece_ids_);
  for (const int32_t id : piece_ids_) push(id);
  counts_.bytes += static_cast<int64_t>(piece_.text.size());
  if (!piece_.ends) return;
  ++counts_.documents;
  if (by_document) {
    at_end_ = true;
  } else if (eos) {
    push(*eos);
  }
}

// Reads until token `wanted` of the sequence is there, or the sequence has ended.
void ScoredRows::fill(int64_t wanted) {
  while (!at_end_ && first_ + static_cast<int64_t>(ids_.size()) <= wanted) read_piece();
}

bool ScoredRows::next_row(std::span<int32_t> tokens, std::span<int32_t> labels) {
  const auto S = static_cast<int64_t>(tokens.size());
  for (;;) {
    const int64_t step = scored_ == 0 ? S : options_.stride;
    fill(scored_ + step);
    const int64_t last = first_ + static_cast<int64_t>(ids_.size()) - 1;
    if (scored_ < last) {
      const int64_t end = std::min(scored_ + step, last);
      const int64_t begin = std::max<int64_t>(0, end - S);
      for (int64_t i = begin; i < end; ++i) {
        tokens[i - begin] = ids_[i - first_];
        if (i >= scored_) labels[i - begin] = ids_[i + 1 - first_];
      }
      counts_.tokens += end - scored_;
      scored_ = end;
      const int64_t keep = std::max<int64_t>(first_, scored_ - S);
      ids_.erase(ids_.begin(), ids_.begin() + (keep - first_));
      first_ = keep;
      return true;
    }
    if (is_done_) return false;
    ids_.clear();
    first_ = scored_ = 0;
    at_end_ = false;
  }
}

}  // namespace tokamak
