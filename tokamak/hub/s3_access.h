// By which key, at which address and in which region a bucket is asked, from the variables and
// files that Amazon's own tools read.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tokamak/hub/http.h"

namespace tokamak {

/// The names and values of a profile.
using AwsProfile = std::map<std::string, std::string>;

/// Reads ~/.aws/credentials or ~/.aws/config; "profile NAME" of the latter is "NAME". Lines that
/// have neither form, and settings below a setting, are left out as those tools do.
std::map<std::string, AwsProfile> parse_aws_profiles(std::string_view text);

struct S3Access {
  AwsKey key;            ///< without an id requests are not signed
  std::string bearer;    ///< a token of Google's, sent in place of a signature
  std::string endpoint;  ///< "https://HOST" of a store that is not Amazon's; else ""
  std::string source;    ///< of the key, for messages: "AWS_ACCESS_KEY_ID", "profile default"
  std::optional<std::chrono::system_clock::time_point> expires;
};

/// Looks for the key in this order: AWS_ACCESS_KEY_ID and the rest; AWS_PROFILE or "default" in
/// AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE; the service of the container; for Amazon's own
/// address that of the machine (IMDSv2). Where none has one, public buckets can still be read.
/// `is_google`: of gs://, where GOOGLE_OAUTH_ACCESS_TOKEN comes first. Throws Error for a half key,
/// and for a profile that is not there or takes its key from elsewhere (SSO, a role, a program).
S3Access find_s3_access(bool is_google);

}  // namespace tokamak
