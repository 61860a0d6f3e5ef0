// A bucket of Amazon S3, of Google Cloud Storage, or of any store that speaks S3's interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/hub/http.h"
#include "tokamak/hub/s3_access.h"
#include "tokamak/hub/s3_xml.h"

namespace tokamak {

/// s3://BUCKET/KEY or gs://BUCKET/KEY.
struct S3Address {
  std::string scheme;  ///< "s3" or "gs"
  std::string bucket;
  std::string key;  ///< may be empty
};

bool is_s3(std::string_view path);

/// Throws Error naming the address where it has no bucket, or one of an impossible name.
S3Address parse_s3_address(const std::string& address);

/// Any thread may call its functions. A request that the store or the way to it fails is repeated
/// (with_patience). They throw Error for what the user can change, naming the address and the key's
/// source, and SystemError where the store cannot be reached or fails.
class S3Bucket {
 public:
  /// `scheme` is "s3" or "gs".
  S3Bucket(const std::string& scheme, const std::string& bucket);
  S3Bucket(const S3Bucket&) = delete;
  S3Bucket& operator=(const S3Bucket&) = delete;
  ~S3Bucket();

  /// Returns the objects whose keys begin with `prefix`, in the order of their keys.
  std::vector<S3Object> list(const std::string& prefix);

  /// Returns nothing where there is no such object.
  std::optional<S3Object> find(const std::string& key);

  /// Fills `out` with the object's bytes from `offset` on. Throws Error where its tag is another
  /// than `object` has.
  void read(const S3Object& object, int64_t offset, std::span<std::byte> out);

  std::string address_of(const std::string& key) const;

 private:
  using Perform = std::function<HttpReply(HttpClient&, const HttpRequest&)>;

  HttpReply send(HttpRequest request, const std::string& key, const std::string& query,
                 const Perform& perform = nullptr);
  S3Access access();
  bool learns_from(const HttpReply& reply, const S3Access& used);
  std::string url_of(const S3Access& access, const std::string& key) const;
  void require_done(const HttpReply& reply, const std::string& key);
  std::unique_ptr<HttpClient> take_client(const S3Access& access);

  std::string scheme_;
  std::string bucket_;
  std::mutex mutex_;
  S3Access access_;
  std::vector<std::unique_ptr<HttpClient>> clients_;  ///< idle, with their connections
};

/// Returns the bucket that all callers of this process share: its connections are kept.
std::shared_ptr<S3Bucket> shared_bucket(const S3Address& address);

}  // namespace tokamak
