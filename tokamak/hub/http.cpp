#include "tokamak/hub/http.h"

#include <algorithm>
#include <cctype>
#include <exception>

#include <curl/curl.h>
#include <dlfcn.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr size_t kLongestBody = size_t{64} << 20U;
constexpr int kMostRedirects = 8;
constexpr long kConnectSeconds = 20;
constexpr long kStallSeconds = 30;  // without a byte

// Holds the functions of libcurl that this file calls.
struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) setopt;
  decltype(&::curl_easy_perform) perform;
  decltype(&::curl_easy_getinfo) getinfo;
  decltype(&::curl_easy_reset) reset;
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_easy_strerror) strerror;
  decltype(&::curl_slist_append) append;
  decltype(&::curl_slist_free_all) free_all;
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  TOK_REQUIRE(function != nullptr, "libcurl.so.4 has no {}", name);
}

Curl load_curl() {
  void* library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  TOK_REQUIRE(library != nullptr,
              "downloads need libcurl (libcurl.so.4), which is not here; on Debian and Ubuntu it "
              "is the package libcurl4");
  Curl curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_setopt", curl.setopt);
  find(library, "curl_easy_perform", curl.perform);
  find(library, "curl_easy_getinfo", curl.getinfo);
  find(library, "curl_easy_reset", curl.reset);
  find(library, "curl_easy_cleanup", curl.cleanup);
  find(library, "curl_easy_strerror", curl.strerror);
  find(library, "curl_slist_append", curl.append);
  find(library, "curl_slist_free_all", curl.free_all);
  TOK_REQUIRE(curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl could not be started");
  return curl;
}

const Curl& curl() {
  static const Curl loaded = load_curl();
  return loaded;
}

// A transfer while it runs; libcurl's callbacks get it.
struct Transfer {
  CURL* handle = nullptr;
  HttpReply reply;
  const std::function<void(int, std::span<const std::byte>)>* take = nullptr;
  std::exception_ptr thrown;

  long status() const {
    long code = 0;
    curl().getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }
};

size_t on_header(char* data, size_t size, size_t count, void* to) {
  auto& transfer = *static_cast<Transfer*>(to);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) transfer.reply.headers.clear();
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size * count;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t first = line.find_first_not_of(" \t", colon + 1);
  const size_t last = line.find_last_not_of(" \t\r\n");
  transfer.reply.headers[name] = first == std::string_view::npos || last < first
                                     ? std::string()
                                     : std::string(line.substr(first, last - first + 1));
  return size * count;
}

// A count other than that given ends the transfer.
size_t on_body(char* data, size_t size, size_t count, void* to) {
  auto& transfer = *static_cast<Transfer*>(to);
  const size_t bytes = size * count;
  const long status = transfer.status();
  try {
    if (transfer.take != nullptr && (status == 200 || status == 206)) {
      (*transfer.take)(static_cast<int>(status), std::as_bytes(std::span(data, bytes)));
      return bytes;
    }
    if (transfer.reply.body.size() + bytes > kLongestBody) return 0;
    transfer.reply.body.append(data, bytes);
  } catch (...) {
    transfer.thrown = std::current_exception();
    return 0;
  }
  return bytes;
}

}  // namespace

struct HttpClient::Impl {
  std::string token;
  std::string origin;
  CURL* handle = nullptr;

  HttpReply perform(const std::string& url, int64_t from,
                    const std::function<void(int, std::span<const std::byte>)>* take) {
    std::string at = url;
    for (int redirects = 0;; ++redirects) {
      HttpReply reply = perform_once(at, from, take);
      const char* next = nullptr;
      if (reply.status / 100 == 3) curl().getinfo(handle, CURLINFO_REDIRECT_URL, &next);
      if (next == nullptr) return reply;
      at = next;
      if (redirects < kMostRedirects) continue;
      reply.status = 0;
      reply.broken = "too many redirects";
      return reply;
    }
  }

  // libcurl's own redirects would carry the token to another port or scheme in some versions, and
  // leave http in others.
  HttpReply perform_once(const std::string& url, int64_t from,
                         const std::function<void(int, std::span<const std::byte>)>* take) {
    const Curl& c = curl();
    const std::string scheme = lower_case(url.substr(0, url.find(':')));
    TOK_REQUIRE(scheme == "http" || scheme == "https", "{}: wanted an address of http or https",
                printable(url));
    c.reset(handle);
    Transfer transfer{.handle = handle, .take = take};
    c.setopt(handle, CURLOPT_URL, url.c_str());
    c.setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    c.setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c.setopt(handle, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
    c.setopt(handle, CURLOPT_NOSIGNAL, 1L);
    c.setopt(handle, CURLOPT_USERAGENT, "tokamak");
    c.setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    c.setopt(handle, CURLOPT_HEADERDATA, &transfer);
    c.setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    c.setopt(handle, CURLOPT_WRITEDATA, &transfer);
    // Unlike CURLOPT_RESUME_FROM this leaves a server the choice to send the whole file.
    const std::string range = fmt::format("{}-", from);
    if (from > 0) c.setopt(handle, CURLOPT_RANGE, range.c_str());
    curl_slist* headers = nullptr;
    if (!token.empty() && url.starts_with(origin))
      headers = c.append(headers, ("Authorization: Bearer " + token).c_str());
    c.setopt(handle, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = c.perform(handle);
    c.free_all(headers);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    if (code == CURLE_OK) {
      transfer.reply.status = static_cast<int>(transfer.status());
    } else {
      transfer.reply.broken = c.strerror(code);
    }
    return std::move(transfer.reply);
  }
};

HttpClient::HttpClient(std::string token, std::string origin) : impl_(std::make_unique<Impl>()) {
  impl_->token = std::move(token);
  impl_->origin = std::move(origin) + "/";
  impl_->handle = curl().easy_init();
  TOK_REQUIRE(impl_->handle != nullptr, "libcurl could not be started");
}

HttpClient::~HttpClient() {
  if (impl_->handle != nullptr) curl().cleanup(impl_->handle);
}

HttpReply HttpClient::get(const std::string& url) {
  return impl_->perform(url, 0, nullptr);
}

HttpReply HttpClient::get(const std::string& url, int64_t from,
                          const std::function<void(int, std::span<const std::byte>)>& take) {
  return impl_->perform(url, from, &take);
}

std::string url_path(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        std::isalnum(byte) != 0 || std::string_view("-._~/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

}  // namespace tokamak
