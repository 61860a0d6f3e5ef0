#include "tokamak/hub/s3_bucket.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/core/value.h"
#include "tokamak/hub/patience.h"

namespace tokamak {
namespace {

constexpr int kMostListPages = 100'000;
constexpr auto kRenewedBefore = std::chrono::minutes(5);

std::string code_of(const HttpReply& reply) {
  return xml_text(reply.body, "Code");
}

bool has_code(const HttpReply& reply, std::initializer_list<std::string_view> codes) {
  return reply.status / 100 == 4 && std::ranges::find(codes, code_of(reply)) != codes.end();
}

std::string described(const HttpReply& reply) {
  std::string text = fmt::format("{}", reply.status);
  const std::string code = code_of(reply);
  if (!code.empty()) text += " " + printable(code);
  const std::string message = xml_text(reply.body, "Message");
  if (!message.empty()) text += ": " + without_controls(message).substr(0, 200);
  return text;
}

// Returns why a store refuses, for the user to change.
std::string s3_refusal(const std::string& address, const HttpReply& reply, const S3Access& access) {
  if (reply.status == 412) return address + ": it has changed since it was listed";
  if (code_of(reply) == "NoSuchBucket") {
    return fmt::format("{}: there is no such bucket{}", address,
                       access.endpoint.empty() ? "" : " at " + access.endpoint);
  }
  if (reply.status == 404) return address + ": there is no such object";
  if (reply.status != 403 && reply.status != 401)
    return fmt::format("{}: the store answered {}", address, described(reply));
  const bool has_key = !access.key.id.empty() || !access.bearer.empty();
  return fmt::format("{}: the store refuses it ({}); {}", address, described(reply),
                     has_key ? "the key is that of " + access.source
                             : "no key was found: set AWS_ACCESS_KEY_ID and "
                               "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE");
}

}  // namespace

bool is_s3(std::string_view path) {
  return path.starts_with("s3://") || path.starts_with("gs://");
}

S3Address parse_s3_address(const std::string& address) {
  TOK_REQUIRE(is_s3(address), "{}: wanted s3://BUCKET/KEY or gs://BUCKET/KEY", printable(address));
  const size_t slash = std::min(address.find('/', 5), address.size());
  S3Address found{.scheme = address.substr(0, 2),
                  .bucket = address.substr(5, slash - 5),
                  .key = slash < address.size() ? address.substr(slash + 1) : ""};
  const bool is_plain = std::ranges::all_of(found.bucket, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-._").find(static_cast<char>(c)) != std::string_view::npos;
  });
  TOK_REQUIRE(!found.bucket.empty() && is_plain && without_controls(found.key) == found.key,
              "{}: wanted {}://BUCKET/KEY", printable(address), found.scheme);
  return found;
}

S3Bucket::S3Bucket(const std::string& scheme, const std::string& bucket)
    : scheme_(scheme), bucket_(bucket), access_(find_s3_access(scheme == "gs")) {}

S3Bucket::~S3Bucket() = default;

std::string S3Bucket::address_of(const std::string& key) const {
  return fmt::format("{}://{}/{}", scheme_, bucket_, key);
}

S3Access S3Bucket::access() {
  const std::lock_guard lock(mutex_);
  if (access_.expires && *access_.expires - std::chrono::system_clock::now() < kRenewedBefore) {
    const std::string region = access_.key.region;
    access_ = find_s3_access(scheme_ == "gs");
    access_.key.region = region;
  }
  return access_;
}

std::string S3Bucket::url_of(const S3Access& access, const std::string& key) const {
  const std::string path = "/" + url_path(key);
  if (!access.endpoint.empty()) return fmt::format("{}/{}{}", access.endpoint, bucket_, path);
  // Amazon's certificates are for one name below s3.REGION.
  const bool is_in_host = bucket_.find('.') == std::string::npos;
  return is_in_host
             ? fmt::format("https://{}.s3.{}.amazonaws.com{}", bucket_, access.key.region, path)
             : fmt::format("https://s3.{}.amazonaws.com/{}{}", access.key.region, bucket_, path);
}

std::unique_ptr<HttpClient> S3Bucket::take_client(const S3Access& access) {
  const std::lock_guard lock(mutex_);
  if (clients_.empty()) return std::make_unique<HttpClient>(access.bearer, access.endpoint);
  auto client = std::move(clients_.back());
  clients_.pop_back();
  return client;
}

// Whether the answer says how to ask: the bucket's region, or that the key has been renewed.
bool S3Bucket::learns_from(const HttpReply& reply, const S3Access& used) {
  if (reply.status < 300 || reply.status >= 500) return false;
  const std::lock_guard lock(mutex_);
  const std::string region = header_of(reply, "x-amz-bucket-region");
  if (used.endpoint.empty() && !region.empty() && region != used.key.region) {
    access_.key.region = region;
    return true;
  }
  if (!has_code(reply, {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken"})) return false;
  S3Access renewed = find_s3_access(scheme_ == "gs");
  renewed.key.region = used.key.region;
  const bool is_other =
      renewed.key.id != used.key.id || renewed.key.session_token != used.key.session_token;
  access_ = std::move(renewed);
  return is_other;
}

HttpReply S3Bucket::send(HttpRequest request, const std::string& key, const std::string& query,
                         const Perform& perform) {
  for (bool is_first = true;; is_first = false) {
    const S3Access used = access();
    request.url = url_of(used, key) + query;
    request.signed_by = used.key.id.empty() || !used.bearer.empty() ? nullptr : &used.key;
    HttpReply reply = with_patience(address_of(key), [&] {
      auto client = take_client(used);
      HttpReply tried = perform ? perform(*client, request) : client->send(request);
      if (has_code(tried, {"RequestTimeout"})) tried.status = 408;
      const std::lock_guard lock(mutex_);
      clients_.push_back(std::move(client));
      return tried;
    });
    if (!is_first || !learns_from(reply, used)) return reply;
  }
}

void S3Bucket::require_done(const HttpReply& reply, const std::string& key) {
  if (reply.status / 100 == 2) return;
  fail("{}", s3_refusal(printable(address_of(key)), reply, access()));
}

std::vector<S3Object> S3Bucket::list(const std::string& prefix) {
  std::vector<S3Object> objects;
  std::string next;
  for (int pages = 0; pages < kMostListPages; ++pages) {
    // In the order of their names, as signing wants it.
    const std::string token =
        next.empty() ? "" : fmt::format("continuation-token={}&", url_value(next));
    const HttpReply reply =
        send({}, "",
             fmt::format("?{}encoding-type=url&list-type=2&prefix={}", token, url_value(prefix)));
    require_done(reply, "");
    S3Page page = parse_s3_list(reply.body, printable(address_of(prefix)));
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(objects));
    next = page.next;
    if (next.empty()) return objects;
  }
  fail("{}: it has more than {} pages of objects", printable(address_of(prefix)), kMostListPages);
}

std::optional<S3Object> S3Bucket::find(const std::string& key) {
  const HttpReply reply = send({.method = HttpMethod::kHead}, key, "");
  if (reply.status == 404) return std::nullopt;
  require_done(reply, key);
  const std::string size = header_of(reply, "content-length");
  const auto bytes = parse_number<int64_t>(size);
  TOK_REQUIRE(bytes && *bytes >= 0, "{}: the store states a size of \"{}\"",
              printable(address_of(key)), printable(size));
  return S3Object{.key = key, .size = *bytes, .tag = header_of(reply, "etag")};
}

void S3Bucket::read(const S3Object& object, int64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const size_t before = done;
    const int64_t from = offset + static_cast<int64_t>(done);
    HttpRequest request{.from = from, .to = offset + std::ssize(out)};
    if (!object.tag.empty()) request.headers["If-Match"] = object.tag;
    const HttpReply reply =
        send(request, object.key, "", [&](HttpClient& client, const HttpRequest& asked) {
          HttpReply tried = client.send(asked, [&](int status, std::span<const std::byte> bytes) {
            TOK_REQUIRE(status == 206 && bytes.size() <= out.size() - done,
                        "{}: the store does not send the bytes of a range",
                        printable(address_of(object.key)));
            std::ranges::copy(bytes, out.begin() + static_cast<int64_t>(done));
            done += bytes.size();
          });
          // A transfer that made progress before it broke continues at once.
          if (tried.status == 0 && done > before) tried.status = 206;
          return tried;
        });
    require_done(reply, object.key);
    if (done == before)
      throw SystemError(fmt::format("{}: the store sends nothing of the bytes from {} on",
                                    printable(address_of(object.key)), from));
  }
}

std::shared_ptr<S3Bucket> shared_bucket(const S3Address& address) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<S3Bucket>> buckets;
  const std::lock_guard lock(mutex);
  auto& bucket = buckets[address.scheme + "://" + address.bucket];
  if (!bucket) bucket = std::make_shared<S3Bucket>(address.scheme, address.bucket);
  return bucket;
}

}  // namespace tokamak
