#include "tokamak/hub/hub_store.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/hub/model_hub.h"

namespace tokamak {
namespace {

constexpr std::string_view kScheme = "hf:";
// Before step 0 the user waits for an answer; later a run outlives four minutes without a hub.
constexpr int kTriesOfLists = 2;
constexpr int kTriesOfReads = 10;

class HubStoredFile final : public RandomFile {
 public:
  explicit HubStoredFile(const StoredFile& file)
      : name_(file.address),
        at_(parse_hub_address(file.address)),
        size_(file.size),
        hub_(hub_endpoint(), hub_token(), HubKind::kDataset, kTriesOfReads) {}

  const std::string& name() const override { return name_; }

  int64_t size() const override { return size_; }

  void read_at(int64_t offset, std::span<std::byte> out) override {
    TOK_REQUIRE(offset + std::ssize(out) <= size_,
                "{}: the file ends at byte {}, wanted those up to {}", printable(name_), size_,
                offset + std::ssize(out));
    const std::lock_guard lock(mutex_);
    hub_.read(at_.repository, at_.revision, at_.path, offset, out);
  }

 private:
  std::string name_;
  HubAddress at_;
  int64_t size_;
  std::mutex mutex_;
  ModelHub hub_;
};

bool is_hidden(const std::string& path) {
  return path.starts_with('.') || path.find("/.") != std::string::npos;
}

// Whether a path may be that of a file: hubs list folders alone.
bool may_be_file(const std::string& path) {
  return path.find('.', path.rfind('/') + 1) != std::string::npos;
}

}  // namespace

HubAddress parse_hub_address(const std::string& text) {
  constexpr const char* kWanted =
      "{}: wanted hf:OWNER/NAME, hf:OWNER/NAME@REVISION or one of these with #FOLDER";
  TOK_REQUIRE(text.starts_with(kScheme), kWanted, printable(text));
  HubAddress at;
  at.repository = text.substr(kScheme.size());
  if (const size_t hash = at.repository.find('#'); hash != std::string::npos) {
    at.path = at.repository.substr(hash + 1);
    at.repository.resize(hash);
  }
  if (const size_t mark = at.repository.find('@'); mark != std::string::npos) {
    at.revision = at.repository.substr(mark + 1);
    at.repository.resize(mark);
  }
  while (at.path.ends_with('/')) at.path.pop_back();
  const bool is_named = std::ranges::count(at.repository, '/') == 1 &&
                        !at.repository.starts_with('/') && !at.repository.ends_with('/');
  TOK_REQUIRE(is_named && !at.revision.empty() && text.find("..") == std::string::npos, kWanted,
              printable(text));
  return at;
}

std::vector<StoredFile> list_hub(const std::string& address) {
  const HubAddress at = parse_hub_address(address);
  ModelHub hub(hub_endpoint(), hub_token(), HubKind::kDataset, kTriesOfLists);
  const bool is_file = may_be_file(at.path);
  const size_t slash = at.path.rfind('/');
  const std::string parent = slash == std::string::npos ? "" : at.path.substr(0, slash);
  const HubSnapshot found = hub.snapshot(at.repository, at.revision, is_file ? parent : at.path);
  std::vector<StoredFile> files;
  const std::string prefix = at.path.empty() ? "" : at.path + "/";
  for (const HubFile& file : found.files) {
    const bool is_it = file.path == at.path;
    if (!is_it && (!file.path.starts_with(prefix) || is_hidden(file.path))) continue;
    files.push_back({.address = fmt::format("hf:{}@{}#{}", at.repository, found.commit, file.path),
                     .name = is_it ? file.path.substr(slash + 1) : file.path.substr(prefix.size()),
                     .size = file.size,
                     .tag = file.sha256.empty() ? file.blob_id : file.sha256});
  }
  TOK_REQUIRE(!files.empty(), "{}: the repository has no such file, and none below it",
              printable(address));
  std::ranges::sort(files, {}, &StoredFile::name);
  return files;
}

std::unique_ptr<RandomFile> open_hub(const StoredFile& file) {
  return std::make_unique<HubStoredFile>(file);
}

}  // namespace tokamak
