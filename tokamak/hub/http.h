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

/// Follows redirects, by http and https alone.
class HttpClient {
 public:
  /// `token`, which may be empty, goes to no other scheme, host or port than those of `origin`,
  /// "https://HOST". Throws Error where libcurl cannot be loaded.
  HttpClient(std::string token, std::string origin);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  HttpReply get(const std::string& url);

  /// Passes the body of a reply 200 or 206 to `take` as it comes, from byte `from` on if the server
  /// can; 206 says that it did. What `take` throws ends the transfer and is thrown.
  HttpReply get(const std::string& url, int64_t from,
                const std::function<void(int status, std::span<const std::byte>)>& take);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns `text` as a part of a URL's path; '/' stays.
std::string url_path(const std::string& text);

}  // namespace tokamak
