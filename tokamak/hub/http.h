// HTTP by libcurl, which is loaded when the first client is made: the program runs without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace tokamak {

struct HttpReply {
  /// The status after redirects; 0 where no whole reply came, and then `broken` says why.
  int status = 0;
  std::string broken;
  /// By name in lower case, of the last reply; those of redirects before it are gone.
  std::map<std::string, std::string> headers;
  std::string body;  ///< of at most 64 MiB; empty where the caller took it
};

enum class HttpMethod { kGet, kHead, kPut };

/// A key by which a request is signed for Amazon S3 or a store that speaks its interface.
struct AwsKey {
  std::string id;
  std::string secret;
  std::string session_token;  ///< of a key that lasts for hours; else ""
  std::string region;
};

/// A request without a body.
struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string url;
  int64_t from = 0;  ///< the first byte that is wanted; 206 says that the reply begins there
  int64_t to = -1;   ///< the byte after the last one that is wanted; -1: the last of the file
  std::map<std::string, std::string> headers;  ///< further ones, by name; none of them empty
  /// Signs the request (AWS Signature Version 4, service s3). Each parameter in the query then
  /// needs a '=', and they must be in the order of their names. Outlives the request.
  const AwsKey* signed_by = nullptr;
  int connect_s = 20;  ///< the seconds after which a server that does not answer is given up
};

/// Follows redirects, by http and https alone, of requests that are not signed.
class HttpClient {
 public:
  using Take = std::function<void(int status, std::span<const std::byte>)>;

  /// `token`, which may be empty, goes to no other scheme, host or port than those of `origin`,
  /// "https://HOST". Throws Error where libcurl cannot be loaded.
  HttpClient(std::string token, std::string origin);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  /// Returns the reply with its body. One thread at a time may call it. Throws Error where a
  /// request is to be signed and libcurl is older than 7.87.
  HttpReply send(const HttpRequest& request);

  /// Passes the body of a reply 200 or 206 to `take` as it comes. What `take` throws ends the
  /// transfer and is thrown.
  HttpReply send(const HttpRequest& request, const Take& take);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns `text` as a part of a URL's path; '/' stays.
std::string url_path(const std::string& text);

/// Returns `text` as a value in a URL's query.
std::string url_value(const std::string& text);

}  // namespace tokamak
