// Repositories of a model hub that speaks Hugging Face's HTTP interface, and their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/hub/http.h"
#include "tokamak/hub/patience.h"

namespace tokamak {

struct HubFile {
  std::string path;  ///< in the repository
  int64_t size = 0;
  std::string sha256;   ///< of a large file; "" of others
  std::string blob_id;  ///< git's id of any other file
};

/// Reads a page of a hub's list of files, which begins no message but that of `what`. Throws Error
/// for a path that would leave the folder or cannot be shown, and for a hash that is none.
std::vector<HubFile> parse_hub_files(std::string_view json, const std::string& repository,
                                     const std::string& what);

/// Returns the address in a header `Link: <URL>; rel="next"`, or "".
std::string next_page(std::string_view link);

/// The kind of a repository; it is part of the URL.
enum class HubKind { kModel, kDataset };

/// One commit of a repository.
struct HubSnapshot {
  std::string repository;
  std::string commit;
  std::vector<HubFile> files;
};

/// Throws Error for what the user can change (a name, a token, access), and SystemError where the
/// hub cannot be reached or fails, after some tries.
class ModelHub {
 public:
  /// `endpoint` is "https://HOST"; `token` may be empty. A request is tried `tries` times.
  ModelHub(const std::string& endpoint, const std::string& token, HubKind kind = HubKind::kModel,
           int tries = kTries);

  /// Returns the files of what `revision` (a branch, tag or commit) means now, those below `folder`
  /// where it is not "". Throws Error for a path that would leave the folder.
  HubSnapshot snapshot(const std::string& repository, const std::string& revision,
                       const std::string& folder = "");

  /// Fills `out` with the bytes of a file from `offset` on. One thread at a time may call it.
  void read(const std::string& repository, const std::string& commit, const std::string& path,
            int64_t offset, std::span<std::byte> out);

  /// Puts a file below `folder`, under its path in the repository. A part that an earlier call
  /// left is completed. The file gets its name once its size and hash are right and it is
  /// synced. Calls `progress` with the bytes that are there. Returns false, without a request, if
  /// the file was there already.
  bool download(const HubSnapshot& snapshot, const HubFile& file,
                const std::filesystem::path& folder,
                const std::function<void(int64_t bytes)>& progress);

 private:
  HttpReply get_json(const std::string& repository, const std::string& url);
  std::string address_of(const std::string& repository, const std::string& commit,
                         const std::string& path) const;

  std::string endpoint_;
  bool has_token_;
  HubKind kind_;
  int tries_;
  HttpClient client_;
};

/// Returns $HF_ENDPOINT, else the address of Hugging Face's hub.
std::string hub_endpoint();

/// Returns the token that Hugging Face's own tools would find: $HF_TOKEN, else that of the file
/// which their login writes, else "".
std::string hub_token();

/// Which files of a repository this program can use.
struct HubAssets {
  bool config = false;
  bool tokenizer = false;
  bool weights = false;
};

/// Returns the files of these kinds. Throws Error naming the repository if it has none of a kind,
/// or has weights in files that are not safetensors only.
std::vector<HubFile> choose_files(const HubSnapshot& snapshot, const HubAssets& assets);

}  // namespace tokamak
