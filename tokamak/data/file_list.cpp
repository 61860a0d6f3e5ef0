#include "tokamak/data/file_list.h"

#include <algorithm>
#include <fstream>

#include <xxhash.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWholeBytes = int64_t{1} << 20;
constexpr int64_t kEndBytes = int64_t{1} << 16;
constexpr int64_t kSampleBytes = int64_t{1} << 12;
constexpr int64_t kSamples = 64;  // between the ends

class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    TOK_CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_);
  }

  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  ~Hash() { XXH3_freeState(state_); }

  void add(std::string_view bytes) { XXH3_64bits_update(state_, bytes.data(), bytes.size()); }

  void add(int64_t value) { XXH3_64bits_update(state_, &value, sizeof(value)); }

  uint64_t digest() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

void add_part(Hash& hash, std::ifstream& in, const SourceFile& file, int64_t first, int64_t count) {
  std::string part(static_cast<size_t>(count), '\0');
  in.seekg(first);
  in.read(part.data(), count);
  TOK_REQUIRE(in.gcount() == count, "cannot read {}: wanted {} bytes at {}, got {}",
              file.path.string(), count, first, in.gcount());
  hash.add(part);
}

void add_contents(Hash& hash, const SourceFile& file) {
  if (file.is_far()) return hash.add(file.tag);
  std::ifstream in(file.path, std::ios::binary);
  if (!in) throw_path_errno("cannot open " + file.path.string());
  if (file.size <= kWholeBytes) return add_part(hash, in, file, 0, file.size);
  add_part(hash, in, file, 0, kEndBytes);
  for (int64_t i = 1; i <= kSamples; ++i) {
    add_part(hash, in, file, (file.size - kSampleBytes) / (kSamples + 1) * i, kSampleBytes);
  }
  add_part(hash, in, file, file.size - kEndBytes, kEndBytes);
}

SourceFile source_file(const fs::path& path, std::string name) {
  std::error_code code;
  const auto size = fs::file_size(path, code);
  TOK_REQUIRE(!code, "cannot read {}: {}", path.string(), code.message());
  return {.path = path, .name = std::move(name), .size = static_cast<int64_t>(size)};
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

// Whether a link leads to a folder that holds it, so that following it would never end.
bool is_loop(const fs::directory_entry& entry) {
  std::error_code code;
  if (!entry.is_symlink(code) || !entry.is_directory(code)) return false;
  const fs::path target = fs::canonical(entry.path(), code);
  const fs::path from = fs::canonical(entry.path().parent_path(), code);
  return !code && std::mismatch(target.begin(), target.end(), from.begin(), from.end()).first ==
                      target.end();
}

std::vector<SourceFile> list_stored(const std::string& address,
                                    const std::function<bool(const std::string&)>& wanted) {
  std::vector<StoredFile> found = list_stored_files(address);
  const bool is_file = found.size() == 1 && !is_source_folder(address);
  std::vector<SourceFile> files;
  for (StoredFile& file : found) {
    const fs::path name(file.name);
    const bool shows = std::ranges::none_of(name, is_hidden);
    if (!is_file && !(shows && wanted(name.filename().string()))) continue;
    files.push_back({.path = std::move(file.address),
                     .name = std::move(file.name),
                     .size = file.size,
                     .tag = std::move(file.tag)});
  }
  return files;
}

}  // namespace

bool SourceFile::is_far() const {
  return is_stored(path.string());
}

bool is_source_folder(const fs::path& path) {
  if (!is_stored(path.string())) return is_folder(path);
  constexpr std::string_view kFiles[] = {".json", ".jsonl", ".ndjson", ".gz",     ".zst",
                                         ".zstd", ".txt",   ".md",     ".parquet"};
  return std::ranges::find(kFiles, lower_case(path.extension().string())) == std::end(kFiles);
}

std::unique_ptr<RandomFile> open_source_file(const SourceFile& file) {
  if (!file.is_far()) return open_local_file(file.path);
  return open_stored_file(
      {.address = file.path.string(), .name = file.name, .size = file.size, .tag = file.tag});
}

std::vector<SourceFile> list_files(const fs::path& path,
                                   const std::function<bool(const std::string&)>& wanted) {
  if (is_stored(path.string())) return list_stored(path.string(), wanted);
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  TOK_REQUIRE(fs::exists(status), "no such file or folder: {}", path.string());
  if (!fs::is_directory(status)) return {source_file(path, path.filename().string())};

  std::vector<SourceFile> files;
  auto it =
      fs::recursive_directory_iterator(path, fs::directory_options::follow_directory_symlink, code);
  for (; !code && it != fs::recursive_directory_iterator(); it.increment(code)) {
    if (is_hidden(it->path()) || is_loop(*it)) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file(code) && wanted(it->path().filename().string())) {
      files.push_back(source_file(it->path(), it->path().lexically_relative(path).string()));
    }
    code.clear();
  }
  TOK_REQUIRE(!code, "cannot read folder {}: {}", path.string(), code.message());
  std::ranges::sort(files,
                    [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return files;
}

uint64_t hash_files(const std::vector<SourceFile>& files) {
  Hash hash;
  for (const SourceFile& file : files) {
    hash.add(static_cast<int64_t>(file.name.size()));
    hash.add(file.name);
    hash.add(file.size);
    add_contents(hash, file);
  }
  return hash.digest();
}

uint64_t hash_times(const std::vector<SourceFile>& files) {
  Hash hash;
  for (const SourceFile& file : files) {
    if (file.size <= kWholeBytes || file.is_far()) continue;
    std::error_code code;
    hash.add(int64_t{fs::last_write_time(file.path, code).time_since_epoch().count()});
  }
  return hash.digest();
}

}  // namespace tokamak
