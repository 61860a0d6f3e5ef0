#include "tokamak/hub/http.h"

#include <algorithm>
#include <cctype>
#include <exception>

#include <curl/curl.h>
#include <dlfcn.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/hub/digest.h"

namespace tokamak {
namespace {

constexpr size_t kLongestBody = size_t{64} << 20U;
constexpr int kMostRedirects = 8;
constexpr long kStallSeconds = 30;  // without a byte
// Versions before 7.86 do not sign x-amz-* headers, and those before 7.87 not the body's hash.
constexpr unsigned kFirstToSign = 0x075700;

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
  decltype(&::curl_version_info) version_info;
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
  find(library, "curl_version_info", curl.version_info);
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
  const HttpClient::Take* take = nullptr;
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

// Holds the headers of one request.
class HeaderList {
 public:
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;

  ~HeaderList() { curl().free_all(list_); }

  void add(const std::string& name, const std::string& value) {
    list_ = curl().append(list_, (name + ": " + value).c_str());
  }

  curl_slist* list() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

void set_method(CURL* handle, const HttpRequest& request) {
  const Curl& c = curl();
  if (request.method == HttpMethod::kPut) {
    c.setopt(handle, CURLOPT_POSTFIELDS, "");
    c.setopt(handle, CURLOPT_CUSTOMREQUEST, "PUT");
  }
  if (request.method == HttpMethod::kHead) c.setopt(handle, CURLOPT_NOBODY, 1L);
}

void sign(CURL* handle, const HttpRequest& request, HeaderList& headers) {
  const Curl& c = curl();
  const curl_version_info_data* version = c.version_info(CURLVERSION_NOW);
  TOK_REQUIRE(version->version_num >= kFirstToSign,
              "{}: its requests are signed, which takes libcurl 7.87 or newer; here is {}",
              printable(request.url), version->version);
  const AwsKey& key = *request.signed_by;
  c.setopt(handle, CURLOPT_AWS_SIGV4, fmt::format("aws:amz:{}:s3", key.region).c_str());
  c.setopt(handle, CURLOPT_USERNAME, key.id.c_str());
  c.setopt(handle, CURLOPT_PASSWORD, key.secret.c_str());
  headers.add("x-amz-content-sha256", sha256_of(std::span<const std::byte>()));
  if (!key.session_token.empty()) headers.add("x-amz-security-token", key.session_token);
}

}  // namespace

struct HttpClient::Impl {
  std::string token;
  std::string origin;
  CURL* handle = nullptr;

  HttpReply perform(HttpRequest request, const Take* take) {
    for (int redirects = 0;; ++redirects) {
      HttpReply reply = perform_once(request, take);
      const char* next = nullptr;
      if (reply.status / 100 == 3 && request.signed_by == nullptr)
        curl().getinfo(handle, CURLINFO_REDIRECT_URL, &next);
      if (next == nullptr) return reply;
      request.url = next;
      if (redirects < kMostRedirects) continue;
      reply.status = 0;
      reply.broken = "too many redirects";
      return reply;
    }
  }

  // libcurl's own redirects would carry the token to another port or scheme in some versions, and
  // leave http in others.
  HttpReply perform_once(const HttpRequest& request, const Take* take) {
    const Curl& c = curl();
    const std::string scheme = lower_case(request.url.substr(0, request.url.find(':')));
    TOK_REQUIRE(scheme == "http" || scheme == "https", "{}: wanted an address of http or https",
                printable(request.url));
    c.reset(handle);
    Transfer transfer{.handle = handle, .take = take};
    c.setopt(handle, CURLOPT_URL, request.url.c_str());
    c.setopt(handle, CURLOPT_PATH_AS_IS, 1L);
    c.setopt(handle, CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.connect_s));
    c.setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c.setopt(handle, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
    c.setopt(handle, CURLOPT_NOSIGNAL, 1L);
    c.setopt(handle, CURLOPT_USERAGENT, "tokamak");
    c.setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    c.setopt(handle, CURLOPT_HEADERDATA, &transfer);
    c.setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    c.setopt(handle, CURLOPT_WRITEDATA, &transfer);
    HeaderList headers;
    set_method(handle, request);
    // Unlike CURLOPT_RESUME_FROM this leaves a server the choice to send the whole file.
    const std::string range =
        fmt::format("{}-{}", request.from, request.to < 0 ? "" : std::to_string(request.to - 1));
    if (request.from > 0 || request.to >= 0) c.setopt(handle, CURLOPT_RANGE, range.c_str());
    if (!token.empty() && request.url.starts_with(origin))
      headers.add("Authorization", "Bearer " + token);
    for (const auto& [name, value] : request.headers) headers.add(name, value);
    if (request.signed_by != nullptr) sign(handle, request, headers);
    c.setopt(handle, CURLOPT_HTTPHEADER, headers.list());
    const CURLcode code = c.perform(handle);
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

HttpReply HttpClient::send(const HttpRequest& request) {
  return impl_->perform(request, nullptr);
}

HttpReply HttpClient::send(const HttpRequest& request, const Take& take) {
  return impl_->perform(request, &take);
}

namespace {

std::string escaped(const std::string& text, std::string_view plain) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool stays = std::isalnum(byte) != 0 || plain.find(c) != std::string_view::npos;
    out += stays ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

}  // namespace

std::string url_path(const std::string& text) {
  return escaped(text, "-._~/");
}

std::string url_value(const std::string& text) {
  return escaped(text, "-._~");
}

}  // namespace tokamak
