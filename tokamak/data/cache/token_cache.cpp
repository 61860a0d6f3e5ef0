#include "tokamak/data/cache/token_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <xxhash.h>

#include "tokamak/core/error.h"
#include "tokamak/data/cache/cache_journal.h"
#include "tokamak/data/cache/cache_writer.h"
#include "tokamak/data/shuffle.h"
#include "tokamak/data/token_formats.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);
// How long a file system may keep back from one host what another has synced.
constexpr auto kLate = std::chrono::seconds(10);
constexpr uint64_t kFormatVersion = 1;

uint64_t combined(std::initializer_list<uint64_t> parts) {
  return XXH3_64bits(parts.begin(), parts.size() * sizeof(uint64_t));
}

// Plain text has no columns.
uint64_t hash_of_text(const TextSource& text) {
  const uint64_t files = hash_files(text.files);
  if (text.format == TextFormat::kPlain || text.column == "text") return files;
  return combined({files, XXH3_64bits(text.column.data(), text.column.size())});
}

uint64_t hash_of_tokens(const TextSource& text, const Tokenizer& tokenizer) {
  return combined(
      {kFormatVersion, static_cast<uint64_t>(text.format), hash_of_text(text), tokenizer.hash()});
}

CacheFolder folder_of_tokens(uint64_t hash, const TextSource& text, const Tokenizer& tokenizer,
                             const std::filesystem::path& parent) {
  return {parent / fmt::format("{:016x}", combined({hash, hash_times(text.files)})),
          tokenizer.vocab_size() <= 65536 ? 2 : 4};
}

class TokenCache final : public TokenSource {
 public:
  TokenCache(TextSource text, const Tokenizer& tokenizer, const std::filesystem::path& parent,
             int threads, bool helps)
      : text_(std::move(text)),
        tokenizer_(tokenizer),
        threads_(threads),
        hash_(hash_of_tokens(text_, tokenizer)),
        folder_(folder_of_tokens(hash_, text_, tokenizer, parent)) {
    if (helps) helper_ = std::make_unique<PartHelper>(folder_, text_, tokenizer_, threads_);
    refresh();
  }

  int64_t wait_for(int64_t end, const std::stop_token& stop) override {
    stop_ = stop;
    if (writer_) writer_->want(end);
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    while (tokens_ < end && !complete_) {
      refresh();
      if (tokens_ >= end || complete_) break;
      if (!ask_for(end)) never.wait_for(lock, stop, kPoll, [] { return false; });
      if (stop.stop_requested()) throw Stopped();
    }
    return tokens_;
  }

  std::optional<int64_t> size() override {
    return complete_ ? std::optional<int64_t>(tokens_) : std::nullopt;
  }

  int64_t tokens_so_far() override { return tokens_; }

  double share_so_far() override { return complete_ ? 1.0 : share_.load(); }

  int64_t progress() override { return tokens_ + folder_.beats(); }

  void read(int64_t first, std::span<int32_t> out) override {
    const int64_t end = first + std::ssize(out);
    bytes_.resize(out.size() * static_cast<size_t>(folder_.token_bytes()));
    do {
      check(first, end);
    } while (!folder_.read_tokens(*files_, first, bytes_));
    copy_tokens(folder_.token_bytes() == 2 ? TokenType::kU16 : TokenType::kU32, bytes_, 0, out);
  }

  // Before there is a cache, the first document speaks for the text.
  std::vector<int32_t> front(int64_t count) override {
    if (tokens_ > 0) return TokenSource::front(count);
    TextReader reader(text_.format, text_.files, text_.column);
    TextPiece piece;
    std::vector<int32_t> ids;
    if (!reader.next(piece)) return ids;
    piece.ends = true;
    encode_piece(tokenizer_, piece, ids);
    return ids;
  }

  std::string describe(int64_t index, int32_t id) override {
    return fmt::format("{}: token {} of the text: id {} of the tokenizer (vocabulary {})",
                       text_.name, index, id, tokenizer_.vocab_size());
  }

  bool carries_tail() const override { return true; }

  const std::string& name() const override { return text_.name; }

  uint64_t hash() const override { return hash_; }

  std::vector<std::string> remarks() const override { return text_.remarks; }

 private:
  // A writer that mends a cache shortens its journal.
  void refresh() {
    const size_t known = records_.empty() ? 0 : records_.size() - 1;
    std::vector<CacheRecord> more = folder_.synced_records(static_cast<int64_t>(known));
    if (known < records_.size() && (more.empty() || more[0] != records_[known])) {
      records_.clear();
      are_sound_.clear();
      more = folder_.synced_records(0);
    }
    if (known + more.size() == records_.size() && !records_.empty()) return;
    if (!records_.empty()) more.erase(more.begin());
    records_.insert(records_.end(), more.begin(), more.end());
    are_sound_.resize(records_.size());
    files_.reset();  // another host's additions show once a file is opened
    const CacheRecord last = records_.empty() ? CacheRecord() : records_.back();
    tokens_ = last.tokens;
    share_ = share_before(last.text);
    complete_ = last.complete;
  }

  // Checks the chunks that hold these tokens, which is done once for each.
  void check(int64_t first, int64_t end) {
    for (bool is_checked = false; !is_checked;) {
      if (!files_) files_ = folder_.open_files();
      const auto begin = std::upper_bound(
          records_.begin(), records_.end(), first,
          [](int64_t token, const CacheRecord& record) { return token < record.tokens; });
      is_checked = true;
      for (auto i = static_cast<size_t>(begin - records_.begin());
           is_checked && (i == 0 || records_[i - 1].tokens < end); ++i) {
        is_checked = is_sound(i);
        if (!is_checked) await_sound(i, end);
      }
    }
  }

  bool is_sound(size_t chunk) {
    if (chunk >= records_.size()) return false;
    if (!are_sound_[chunk])
      are_sound_[chunk] = folder_.is_sound(*files_, before(chunk), records_[chunk]);
    return are_sound_[chunk];
  }

  CacheRecord before(size_t chunk) const {
    return chunk == 0 ? CacheRecord() : records_[chunk - 1];
  }

  // Makes a damaged chunk and what follows it anew, unless another process has done so meanwhile or
  // is at it. Tokens of another host may also be late.
  void await_sound(size_t chunk, int64_t end) {
    const auto last = std::chrono::steady_clock::now() + kLate;
    const CacheRecord record = chunk < records_.size() ? records_[chunk] : CacheRecord();
    const int64_t sound = before(chunk).tokens;
    for (;; std::this_thread::sleep_for(kPoll)) {
      records_.clear();
      are_sound_.clear();
      refresh();
      if (tokens_ < end && !complete_) break;
      files_ = folder_.open_files();
      if (chunk >= records_.size() || records_[chunk] != record || is_sound(chunk)) return;
      const std::string damage =
          fmt::format("{}: tokens {} to {} do not have their hash: the token cache is damaged",
                      folder_.tokens_path().string(), sound, record.tokens);
      try {
        if (start_writer(sound)) break;
      } catch (const Error& error) {
        fail("{} and cannot be mended: {}", damage, error.what());
      }
      TOK_REQUIRE(std::chrono::steady_clock::now() < last,
                  "{}, and another process holds it: end that process, or delete the folder",
                  damage);
    }
    tokens_ = sound;
    complete_ = false;
    wait_for(end, stop_);
  }

  // Returns false where another process has the lock.
  bool start_writer(int64_t sound) {
    writer_.reset();
    writer_ = CacheWriter::try_start(folder_, text_, tokenizer_, threads_, sound);
    return writer_ != nullptr;
  }

  // Counts bytes as files hold them, so a compressed file counts as far as its unpacked bytes
  // would reach.
  double share_before(const TextPosition& at) const {
    int64_t read = 0;
    int64_t all = 0;
    for (size_t i = 0; i < text_.files.size(); ++i) {
      const int64_t size = text_.files[i].size;
      const auto file = static_cast<int64_t>(i);
      if (file < at.file) read += size;
      if (file == at.file) read += std::min(size, at.offset);
      all += size;
    }
    return all > 0 ? static_cast<double>(read) / static_cast<double>(all) : 1.0;
  }

  // Returns whether it has done some of the work itself meanwhile.
  bool ask_for(int64_t end) {
    if (!writer_ && !start_writer(INT64_MAX)) {
      folder_.set_demand(end);
      return helper_ && helper_->help();
    }
    helper_.reset();
    writer_->want(end);
    writer_->check();
    return false;
  }

  TextSource text_;
  const Tokenizer& tokenizer_;
  int threads_;
  uint64_t hash_;
  CacheFolder folder_;
  std::atomic<int64_t> tokens_{0};
  std::atomic<double> share_{0.0};
  std::atomic<bool> complete_{false};
  std::vector<CacheRecord> records_;  // as far as they are synced
  std::vector<bool> are_sound_;       // by record: its chunk has been checked
  std::optional<CacheFiles> files_;
  std::stop_token stop_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<CacheWriter> writer_;
  std::unique_ptr<PartHelper> helper_;  // while another process writes
};

std::vector<std::string> remarks_on_others(const TextFiles& list, const std::string& path) {
  const size_t others = list.others.size();
  const size_t all = list.files.size() + others;
  if (others == 0) return {};
  if (others == 1)
    return {fmt::format("{}: left out {}, the only one of {} files that is not text", path,
                        list.others[0].name, all)};
  return {fmt::format("{}: left out {} of {} files, which are not text, such as {}", path, others,
                      all, list.others[0].name)};
}

std::vector<SourceFile> in_drawn_order(std::vector<SourceFile> files, uint64_t seed) {
  std::vector<SourceFile> drawn;
  drawn.reserve(files.size());
  for (int64_t i = 0; i < std::ssize(files); ++i)
    drawn.push_back(std::move(files[shuffled(seed, 0, std::ssize(files), i)]));
  return drawn;
}

}  // namespace

TextSource text_source(const std::string& dataset, const std::string& path,
                       const std::string& column, std::optional<uint64_t> order_seed) {
  const bool is_plain = dataset == "text";
  TextFiles list = list_text_files(dataset, path);
  if (order_seed && is_stored(path))
    list.files = in_drawn_order(std::move(list.files), *order_seed);
  std::vector<std::string> remarks = remarks_on_others(list, path);
  if (is_plain) {
    std::vector<SourceFile> files = list.files;
    if (const auto json = part_json_lines(files, column); json != files.end())
      remarks.push_back(fmt::format(
          "{}: {} of {} files are JSON lines by their names, such as {}: dataset \"text\" reads "
          "them as plain text, with all their braces; \"c4\" reads their field \"{}\"",
          path, files.end() - json, files.size(), json->name, column));
  }
  return {.name = path,
          .format = is_plain ? TextFormat::kPlain : TextFormat::kJsonLines,
          .files = std::move(list.files),
          .column = column,
          .remarks = std::move(remarks)};
}

std::vector<TextSource> text_sources_by_name(const std::string& path, const std::string& column) {
  const auto [lines, plain] = list_by_name(path, column);
  return {{.name = path, .format = TextFormat::kJsonLines, .files = lines, .column = column},
          {.name = path,
           .format = TextFormat::kPlain,
           .files = plain.files,
           .remarks = remarks_on_others(plain, path)}};
}

CacheFolder token_cache_of(const TextSource& text, const Tokenizer& tokenizer,
                           const std::filesystem::path& cache_folder) {
  return folder_of_tokens(hash_of_tokens(text, tokenizer), text, tokenizer, cache_folder);
}

std::unique_ptr<TokenSource> open_token_cache(TextSource text, const Tokenizer& tokenizer,
                                              const std::filesystem::path& cache_folder,
                                              int threads, bool helps) {
  return std::make_unique<TokenCache>(std::move(text), tokenizer, cache_folder, threads, helps);
}

}  // namespace tokamak
