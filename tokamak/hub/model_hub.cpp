#include "tokamak/hub/model_hub.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/hub/digest.h"
#include "tokamak/hub/patience.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int kMostPages = 1000;
constexpr size_t kLongestName = 200;

// Returns why a hub refuses, for the user to change.
std::string refusal(const std::string& repository, const HttpReply& reply, bool has_token) {
  const std::string code = header_of(reply, "x-error-code");
  if (code == "GatedRepo" || reply.status == 403) {
    return fmt::format("{}: access to it must be granted on its page first{}", repository,
                       has_token ? ", to the account of this token"
                                 : "; then give the account's token by --token or HF_TOKEN");
  }
  if (reply.status == 401) {
    return has_token ? fmt::format(
                           "{}: the hub does not take this token, or knows no such "
                           "repository",
                           repository)
                     : fmt::format(
                           "{}: there is no such repository, or it wants a token: give it "
                           "by --token or HF_TOKEN",
                           repository);
  }
  if (code == "RevisionNotFound") return repository + ": it has no such revision";
  if (reply.status == 404) return repository + ": the hub has no such repository or file";
  return fmt::format("{}: the hub answered {} {}", repository, reply.status,
                     printable(header_of(reply, "x-error-message")));
}

bool has_control(std::string_view text) {
  return without_controls(text) != text;
}

bool is_hash(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void check_path(const std::string& repository, const std::string& path) {
  const fs::path p(path);
  const bool stays = !path.empty() && p.is_relative() && !has_control(path) &&
                     path.find('\\') == std::string::npos &&
                     std::ranges::none_of(p, [](const fs::path& part) {
                       return part == ".." || part == "." || part.empty();
                     });
  TOK_REQUIRE(stays, "{}: the hub lists a file \"{}\", which is not a path inside a folder",
              repository, printable(path));
}

HubFile file_of(const std::string& repository, const Json& row, const std::string& what) {
  HubFile file{.path = json_member<std::string>(row, "path", what),
               .size = json_member<int64_t>(row, "size", what),
               .blob_id = json_member<std::string>(row, "oid", what)};
  check_path(repository, file.path);
  if (row.contains("lfs") && row["lfs"].is_object()) {
    file.sha256 = json_member<std::string>(row["lfs"], "oid", what);
    file.size = json_member<int64_t>(row["lfs"], "size", what);
  }
  TOK_REQUIRE(file.size >= 0, "{}: {} has a size of {}", repository, printable(file.path),
              file.size);
  TOK_REQUIRE(file.sha256.empty() ? is_hash(file.blob_id, 40) : is_hash(file.sha256, 64),
              "{}: {}: wanted its hash, got \"{}\"", repository, printable(file.path),
              printable(file.sha256.empty() ? file.blob_id : file.sha256));
  return file;
}

bool is_whole(const fs::path& path, const HubFile& file) {
  std::error_code error;
  if (fs::file_size(path, error) != static_cast<uintmax_t>(file.size) || error) return false;
  return file.sha256.empty() ? git_blob_id(path) == file.blob_id : sha256_of(path) == file.sha256;
}

// A partial download, next to its final place. Its name holds its hash, so that a part of another
// version is not resumed.
class PartFile {
 public:
  PartFile(const fs::path& target, const HubFile& file) : path_(target) {
    const std::string& id = file.sha256.empty() ? file.blob_id : file.sha256;
    path_ += "." + id.substr(0, 12) + ".part";
    std::error_code error;
    const uintmax_t size = fs::file_size(path_, error);
    if (!error && size <= static_cast<uintmax_t>(file.size)) here_ = static_cast<int64_t>(size);
  }

  int64_t here() const { return here_; }

  const fs::path& path() const { return path_; }

  void open(bool goes_on) {
    if (!goes_on) here_ = 0;
    writer_.emplace(path_, goes_on ? FileWriter::Mode::kAppend : FileWriter::Mode::kTruncate);
  }

  bool is_open() const { return writer_.has_value(); }

  void write(std::span<const std::byte> bytes) {
    writer_->write(bytes);
    here_ += static_cast<int64_t>(bytes.size());
  }

  void close() {
    if (writer_) writer_->sync_and_close();
    writer_.reset();
  }

 private:
  fs::path path_;
  std::optional<FileWriter> writer_;
  int64_t here_ = 0;
};

bool is_config(const std::string& path) {
  return path == "config.json" || path == "generation_config.json";
}

bool is_tokenizer(const std::string& path) {
  constexpr std::string_view kNames[] = {
      "tokenizer.json", "tokenizer.model", "tokenizer_config.json",    "special_tokens_map.json",
      "vocab.json",     "merges.txt",      "original/tokenizer.model", "tekken.json"};
  return std::ranges::find(kNames, path) != std::end(kNames);
}

bool is_weights(const std::string& path) {
  return path.find('/') == std::string::npos &&
         (path.ends_with(".safetensors") || path == "model.safetensors.index.json");
}

}  // namespace

std::vector<HubFile> parse_hub_files(std::string_view json, const std::string& repository,
                                     const std::string& what) {
  const Json rows = parse_json(json, what);
  TOK_REQUIRE(rows.is_array(), "{}: wanted a list of files", what);
  std::vector<HubFile> files;
  for (const Json& row : rows) {
    if (json_member<std::string>(row, "type", what) == "file")
      files.push_back(file_of(repository, row, what));
  }
  return files;
}

std::string next_page(std::string_view link) {
  const size_t begin = link.find('<');
  const size_t end = link.find('>');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  if (link.find("rel=\"next\"", end) == std::string::npos) return {};
  return std::string(link.substr(begin + 1, end - begin - 1));
}

namespace {

std::string checked_endpoint(const std::string& given) {
  std::string endpoint = given;
  TOK_REQUIRE(endpoint.starts_with("https://") || endpoint.starts_with("http://"),
              "the hub's address {}: wanted https://HOST", printable(endpoint));
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint;
}

}  // namespace

ModelHub::ModelHub(const std::string& endpoint, const std::string& token, HubKind kind, int tries)
    : endpoint_(checked_endpoint(endpoint)),
      has_token_(!token.empty()),
      kind_(kind),
      tries_(tries),
      client_(token, endpoint_.substr(0, endpoint_.find('/', endpoint_.find("//") + 2))) {}

HttpReply ModelHub::get_json(const std::string& repository, const std::string& url) {
  HttpReply reply = with_patience(
      url, [&] { return client_.send({.url = url}); }, tries_);
  TOK_REQUIRE(reply.status == 200, "{}", refusal(repository, reply, has_token_));
  return reply;
}

std::string ModelHub::address_of(const std::string& repository, const std::string& commit,
                                 const std::string& path) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", endpoint_,
                     kind_ == HubKind::kDataset ? "datasets/" : "", url_path(repository),
                     url_path(commit), url_path(path));
}

HubSnapshot ModelHub::snapshot(const std::string& repository, const std::string& revision,
                               const std::string& folder) {
  const std::string base =
      fmt::format("{}/api/{}/{}", endpoint_, kind_ == HubKind::kDataset ? "datasets" : "models",
                  url_path(repository));
  std::string url = fmt::format("{}/revision/{}", base, url_path(revision));
  HubSnapshot found{.repository = repository};
  found.commit =
      json_member<std::string>(parse_json(get_json(repository, url).body, url), "sha", url);
  TOK_REQUIRE(!has_control(found.commit) && found.commit.size() <= kLongestName,
              "{}: the hub names a commit \"{}\"", repository, printable(found.commit));
  url = fmt::format("{}/tree/{}{}{}?recursive=true", base, url_path(found.commit),
                    folder.empty() ? "" : "/", url_path(folder));
  for (int pages = 0; !url.empty(); ++pages) {
    TOK_REQUIRE(pages < kMostPages, "{}: the hub lists its files on more than {} pages", repository,
                kMostPages);
    const HttpReply page = get_json(repository, url);
    for (HubFile& file : parse_hub_files(page.body, repository, printable(url)))
      found.files.push_back(std::move(file));
    url = next_page(header_of(page, "link"));
  }
  return found;
}

bool ModelHub::download(const HubSnapshot& snapshot, const HubFile& file, const fs::path& folder,
                        const std::function<void(int64_t)>& progress) {
  const fs::path target = folder / file.path;
  if (path_exists(target) && is_whole(target, file)) return false;
  make_folders(target.parent_path());
  const std::string url = address_of(snapshot.repository, snapshot.commit, file.path);
  PartFile part(target, file);
  while (part.here() < file.size || !path_exists(part.path())) {
    const int64_t before = part.here();
    const HttpReply reply = with_patience(url, [&] {
      HttpReply tried =
          client_.send({.url = url, .from = part.here()}, [&](int status, auto bytes) {
            if (!part.is_open()) part.open(status == 206);
            TOK_REQUIRE(part.here() + static_cast<int64_t>(bytes.size()) <= file.size,
                        "{}: {}: the server sends more than the {} bytes that it states",
                        snapshot.repository, file.path, file.size);
            part.write(bytes);
            progress(part.here());
          });
      if (tried.status == 200 && file.size == 0) part.open(false);
      part.close();
      // A transfer that broke later than the last one is progress, and tried again at once.
      if (tried.status == 0 && part.here() > before) tried.status = 206;
      return tried;
    });
    TOK_REQUIRE(reply.status == 200 || reply.status == 206, "{}",
                refusal(snapshot.repository, reply, has_token_));
    TOK_REQUIRE(part.here() > before || part.here() == file.size,
                "{}: {}: the server sends {} of the {} bytes that it states", snapshot.repository,
                file.path, part.here(), file.size);
  }
  if (!is_whole(part.path(), file)) {
    fs::remove(part.path());
    throw SystemError(fmt::format(
        "{}: {}: its bytes do not have the hash that the hub states; the download was removed, "
        "try again",
        snapshot.repository, file.path));
  }
  rename_durably(part.path(), target);
  return true;
}

void ModelHub::read(const std::string& repository, const std::string& commit,
                    const std::string& path, int64_t offset, std::span<std::byte> out) {
  const std::string url = address_of(repository, commit, path);
  const HttpReply reply = with_patience(
      url,
      [&] {
        size_t here = 0;
        HttpReply tried = client_.send(
            {.url = url, .from = offset, .to = offset + std::ssize(out)},
            [&](int status, auto bytes) {
              TOK_REQUIRE(status == 206 || offset == 0, "{}: the hub does not send parts of files",
                          printable(url));
              // A server that ignores ranges sends the whole file.
              const size_t count = std::min(bytes.size(), out.size() - here);
              std::copy_n(bytes.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(here));
              here += count;
            });
        const bool is_success = tried.status == 200 || tried.status == 206;
        if (is_success && here < out.size()) {
          tried.status = 0;
          tried.broken = fmt::format("{} of {} bytes came", here, out.size());
        }
        return tried;
      },
      tries_);
  TOK_REQUIRE(reply.status == 200 || reply.status == 206, "{}",
              refusal(repository, reply, has_token_));
}

std::string hub_endpoint() {
  const std::string own = environment_variable("HF_ENDPOINT");
  return own.empty() ? "https://huggingface.co" : own;
}

std::string hub_token() {
  const auto trimmed = [](std::string text) {
    text.erase(text.find_last_not_of(" \t\r\n") + 1);
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text;
  };
  if (std::string token = trimmed(environment_variable("HF_TOKEN")); !token.empty()) return token;
  fs::path file = environment_variable("HF_TOKEN_PATH");
  if (file.empty()) {
    const std::string home = environment_variable("HF_HOME");
    if (home.empty() && environment_variable("HOME").empty()) return {};
    file = (home.empty() ? fs::path(environment_variable("HOME")) / ".cache/huggingface"
                         : fs::path(home)) /
           "token";
  }
  return path_exists(file) ? trimmed(read_file(file)) : "";
}

std::vector<HubFile> choose_files(const HubSnapshot& snapshot, const HubAssets& assets) {
  std::vector<HubFile> chosen;
  const auto take = [&](bool wanted, const char* kind, const auto& is_of_kind) {
    if (!wanted) return;
    const size_t before = chosen.size();
    for (const HubFile& file : snapshot.files) {
      if (is_of_kind(file.path)) chosen.push_back(file);
    }
    if (chosen.size() > before) return;
    const bool has_pickles = std::ranges::any_of(snapshot.files, [](const HubFile& file) {
      return file.path.ends_with(".bin") || file.path.ends_with(".pth");
    });
    TOK_REQUIRE(std::string_view(kind) != "weights" || !has_pickles,
                "{}: it has pickled Python objects only, which are not supported; look for a "
                "revision with safetensors",
                snapshot.repository);
    fail("{}: it has no {} at {}", snapshot.repository, kind, printable(snapshot.commit));
  };
  take(assets.config, "config.json", is_config);
  take(assets.tokenizer, "tokenizer", is_tokenizer);
  take(assets.weights, "weights", is_weights);
  return chosen;
}

}  // namespace tokamak
