#include "tokamak/hub/s3_access.h"

#include <cctype>
#include <ctime>
#include <filesystem>
#include <initializer_list>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kMachineHost = "http://169.254.169.254";
constexpr const char* kFirstRegion = "us-east-1";

std::string first_variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::string value = environment_variable(name);
    if (!value.empty()) return value;
  }
  return "";
}

std::string value_of(const AwsProfile& profile, const char* name) {
  const auto found = profile.find(name);
  return found == profile.end() ? "" : found->second;
}

fs::path aws_file(const char* variable, const char* name) {
  const std::string given = environment_variable(variable);
  if (!given.empty()) return given;
  const std::string home = environment_variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".aws" / name;
}

// Returns the settings of both files; those of credentials come first.
AwsProfile read_profile() {
  const std::string given = environment_variable("AWS_PROFILE");
  const std::string name = given.empty() ? "default" : given;
  AwsProfile profile;
  bool is_there = false;
  for (const fs::path& path : {aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
                               aws_file("AWS_CONFIG_FILE", "config")}) {
    if (path.empty() || !path_exists(path)) continue;
    const auto profiles = parse_aws_profiles(read_file(path, kSmallFileBytes));
    const auto found = profiles.find(name);
    if (found == profiles.end()) continue;
    is_there = true;
    profile.insert(found->second.begin(), found->second.end());
  }
  TOK_REQUIRE(is_there || given.empty(),
              "AWS_PROFILE = {}: neither ~/.aws/credentials nor ~/.aws/config has it",
              printable(given));
  return profile;
}

void take_profile(S3Access& access, const AwsProfile& profile) {
  const std::string given = environment_variable("AWS_PROFILE");
  access.source = "profile " + printable(given.empty() ? "default" : given);
  access.key.id = value_of(profile, "aws_access_key_id");
  access.key.secret = value_of(profile, "aws_secret_access_key");
  access.key.session_token = value_of(profile, "aws_session_token");
  TOK_REQUIRE(access.key.id.empty() == access.key.secret.empty(),
              "{}: wanted aws_access_key_id and aws_secret_access_key, got one of them",
              access.source);
  if (!access.key.id.empty()) return;
  for (const char* other : {"sso_session", "sso_start_url", "role_arn", "credential_process"}) {
    TOK_REQUIRE(!profile.contains(other),
                "{}: it takes its key by {}, which is not supported; set the variables that `aws "
                "configure export-credentials --format env` prints",
                access.source, other);
  }
}

// Reads the answer that both services give.
void take_answer(S3Access& access, const std::string& text, const std::string& what) {
  const Json answer = parse_json(text, what);
  access.key.id = json_member<std::string>(answer, "AccessKeyId", what);
  access.key.secret = json_member<std::string>(answer, "SecretAccessKey", what);
  access.key.session_token = json_member_or<std::string>(answer, "Token", "", what);
  access.source = what;
  std::tm time{};
  const auto until = json_member_or<std::string>(answer, "Expiration", "", what);
  if (::strptime(until.c_str(), "%Y-%m-%dT%H:%M:%S", &time) != nullptr)
    access.expires = std::chrono::system_clock::from_time_t(::timegm(&time));
}

bool take_from_container(S3Access& access) {
  const std::string relative = environment_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url = relative.empty()
                              ? environment_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                              : kContainerHost + relative;
  if (url.empty()) return false;
  HttpRequest request{.url = url};
  std::string token = environment_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file = environment_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) token = trimmed(read_file(file, kSmallFileBytes));
  if (!token.empty()) request.headers["Authorization"] = token;
  const HttpReply reply = HttpClient("", "").send(request);
  TOK_REQUIRE(reply.status == 200, "{}: the service of the container gives no key: {} {}",
              printable(url), reply.status, reply.broken);
  take_answer(access, reply.body, "the service of the container");
  return true;
}

// Without such a service nobody answers, or someone else does.
void take_from_machine(S3Access& access) {
  if (lower_case(environment_variable("AWS_EC2_METADATA_DISABLED")) == "true") return;
  std::string host = environment_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (host.empty()) host = kMachineHost;
  while (host.ends_with('/')) host.pop_back();
  HttpClient client("", "");
  const HttpReply session =
      client.send({.method = HttpMethod::kPut,
                   .url = host + "/latest/api/token",
                   .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}},
                   .connect_s = 1});
  if (session.status != 200) return;
  const std::map<std::string, std::string> headers = {{"X-aws-ec2-metadata-token", session.body}};
  const std::string roles = host + "/latest/meta-data/iam/security-credentials/";
  const HttpReply role = client.send({.url = roles, .headers = headers, .connect_s = 1});
  if (role.status != 200 || role.body.empty()) return;
  const std::string name = role.body.substr(0, role.body.find('\n'));
  const HttpReply answer =
      client.send({.url = roles + url_path(name), .headers = headers, .connect_s = 1});
  if (answer.status != 200) return;
  take_answer(access, answer.body, "the machine's role " + printable(name));
}

void find_key(S3Access& access, const AwsProfile& profile, bool asks_machine) {
  access.key.id = environment_variable("AWS_ACCESS_KEY_ID");
  access.key.secret = environment_variable("AWS_SECRET_ACCESS_KEY");
  access.source = "AWS_ACCESS_KEY_ID";
  TOK_REQUIRE(access.key.id.empty() == access.key.secret.empty(),
              "wanted AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, got one of them");
  if (!access.key.id.empty()) {
    access.key.session_token = environment_variable("AWS_SESSION_TOKEN");
    return;
  }
  take_profile(access, profile);
  if (!access.key.id.empty() || take_from_container(access)) return;
  if (asks_machine) take_from_machine(access);
}

}  // namespace

std::map<std::string, AwsProfile> parse_aws_profiles(std::string_view text) {
  std::map<std::string, AwsProfile> profiles;
  AwsProfile* profile = nullptr;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || std::string_view("#; \t").find(line.front()) != std::string_view::npos)
      continue;
    if (line.front() == '[') {
      std::string_view name = trimmed(line.substr(1, line.find(']') - 1));
      if (name.starts_with("profile ")) name = trimmed(name.substr(8));
      profile = &profiles[std::string(name)];
      continue;
    }
    const size_t equals = line.find('=');
    if (profile == nullptr || equals == std::string_view::npos) continue;
    (*profile)[lower_case(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
  }
  return profiles;
}

S3Access find_s3_access(bool is_google) {
  S3Access access;
  if (is_google) {
    access.endpoint = "https://storage.googleapis.com";
    access.key.region = "auto";
    access.bearer = environment_variable("GOOGLE_OAUTH_ACCESS_TOKEN");
    access.source = "GOOGLE_OAUTH_ACCESS_TOKEN";
    if (!access.bearer.empty()) return access;
  }
  const AwsProfile profile = read_profile();
  if (!is_google) {
    access.endpoint = first_variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
    if (access.endpoint.empty()) access.endpoint = value_of(profile, "endpoint_url");
    while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
    access.key.region = first_variable({"AWS_REGION", "AWS_DEFAULT_REGION"});
    if (access.key.region.empty()) access.key.region = value_of(profile, "region");
    if (access.key.region.empty()) access.key.region = kFirstRegion;
  }
  find_key(access, profile, access.endpoint.empty());
  return access;
}

}  // namespace tokamak
