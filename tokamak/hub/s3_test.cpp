// Parsing of a store's XML and of Amazon's files. tests/objects sends requests to a server.
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/hub/s3_access.h"
#include "tokamak/hub/s3_bucket.h"
#include "tokamak/hub/s3_xml.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

std::string message_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(S3List, has_keys_sizes_tags_and_the_next_page) {
  const S3Page page = parse_s3_list(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Name>b</Name>"
      "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>a&amp;b==</NextContinuationToken>"
      "<Contents><Key>d/a+b%2Bc%C3%A9</Key><Size>7</Size><ETag>&quot;x-3&quot;</ETag></Contents>"
      "<Contents><Key>e</Key><ETag>\"y\"</ETag><Size>0</Size></Contents></ListBucketResult>",
      "list");
  ASSERT_EQ(page.objects.size(), 2);
  EXPECT_EQ(page.objects[0].key, "d/a b+c\xC3\xA9");
  EXPECT_EQ(page.objects[0].size, 7);
  EXPECT_EQ(page.objects[0].tag, "\"x-3\"");
  EXPECT_EQ(page.objects[1].tag, "\"y\"");
  EXPECT_EQ(page.next, "a&b==");
}

TEST(S3List, without_encoding_keys_stand_as_they_are) {
  const S3Page page = parse_s3_list(
      "<ListBucketResult><Contents><Key>a+b%2B&lt;</Key><Size>1</Size></Contents>"
      "</ListBucketResult>",
      "list");
  EXPECT_EQ(page.objects.at(0).key, "a+b%2B<");
  EXPECT_EQ(page.next, "");
}

TEST(S3List, refuses_what_is_none) {
  const auto refusal = [](const std::string& rows) {
    return message_of([&] { parse_s3_list(rows, "list"); });
  };
  EXPECT_EQ(refusal("<html>"), "list: wanted a list of objects, got \"<html>\"");
  EXPECT_NE(refusal("<ListBucketResult><Contents><Key>a"), "");  // cut
  EXPECT_EQ(refusal("<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents>"
                    "</ListBucketResult>"),
            "list: an object has a size of \"-1\"");
  EXPECT_NE(refusal("<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%1Bb</Key>"
                    "<Size>1</Size></Contents></ListBucketResult>"),
            "");
  EXPECT_EQ(refusal("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
            "list: the list goes on, but has no NextContinuationToken");
}

TEST(S3Address, has_a_bucket_and_a_key) {
  const S3Address address = parse_s3_address("gs://my-bucket/a/b c");
  EXPECT_EQ(address.scheme, "gs");
  EXPECT_EQ(address.bucket, "my-bucket");
  EXPECT_EQ(address.key, "a/b c");
  EXPECT_EQ(parse_s3_address("s3://b").key, "");
  for (const char* wrong : {"s3://", "s3:///x", "s3://a@b/x", "s3://b/\x1b", "http://b/x"})
    EXPECT_NE(message_of([&] { parse_s3_address(wrong); }), "") << wrong;
}

TEST(AwsProfiles, are_read_from_both_files) {
  const auto profiles = parse_aws_profiles(
      "# a comment\n[default]\naws_access_key_id = A\r\nAws_Secret_Access_Key=s/+=\n"
      "s3 =\n  max_concurrent_requests = 20\n[profile of work]\nregion = eu-west-1\nno value\n");
  ASSERT_EQ(profiles.size(), 2);
  EXPECT_EQ(profiles.at("default").at("aws_access_key_id"), "A");
  EXPECT_EQ(profiles.at("default").at("aws_secret_access_key"), "s/+=");
  EXPECT_FALSE(profiles.at("default").contains("max_concurrent_requests"));
  EXPECT_EQ(profiles.at("of work").at("region"), "eu-west-1");
}

// Nothing but the files of a folder says what the key is.
class Access : public testing::Test {
 public:
  ~Access() override { fs::remove_all(folder_); }

 protected:
  Access() : folder_(fs::path(testing::TempDir()) / fmt::format("tokamak_s3_test_{}", ::getpid())) {
    make_folders(folder_);
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                             "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
                             "AWS_ENDPOINT_URL_S3", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "GOOGLE_OAUTH_ACCESS_TOKEN"})
      ::unsetenv(name);
    ::setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    write("credentials", "");
    write("config", "");
    ::setenv("AWS_SHARED_CREDENTIALS_FILE", (folder_ / "credentials").c_str(), 1);
    ::setenv("AWS_CONFIG_FILE", (folder_ / "config").c_str(), 1);
  }

  void write(const char* name, const std::string& text) const {
    write_file_atomic(folder_ / name, text);
  }

  fs::path folder_;
};

TEST_F(Access, is_unsigned_where_nothing_is_given) {
  const S3Access access = find_s3_access(false);
  EXPECT_EQ(access.key.id, "");
  EXPECT_EQ(access.endpoint, "");
  EXPECT_EQ(access.key.region, "us-east-1");
}

TEST_F(Access, is_that_of_a_profile) {
  write("credentials", "[w]\naws_access_key_id=A\naws_secret_access_key=B\n");
  write("config", "[profile w]\nregion=eu-west-1\nendpoint_url=http://h:1/\n");
  ::setenv("AWS_PROFILE", "w", 1);
  S3Access access = find_s3_access(false);
  EXPECT_EQ(access.key.id, "A");
  EXPECT_EQ(access.key.secret, "B");
  EXPECT_EQ(access.key.region, "eu-west-1");
  EXPECT_EQ(access.endpoint, "http://h:1");
  EXPECT_EQ(access.source, "profile w");
  ::setenv("AWS_ACCESS_KEY_ID", "C", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "D", 1);
  ::setenv("AWS_SESSION_TOKEN", "T", 1);
  ::setenv("AWS_REGION", "us-west-2", 1);
  ::setenv("AWS_ENDPOINT_URL_S3", "http://other", 1);
  access = find_s3_access(false);
  EXPECT_EQ(access.key.id, "C");
  EXPECT_EQ(access.key.session_token, "T");
  EXPECT_EQ(access.key.region, "us-west-2");
  EXPECT_EQ(access.endpoint, "http://other");
}

TEST_F(Access, of_google_is_a_key_or_a_token) {
  ::setenv("AWS_ACCESS_KEY_ID", "GOOG1", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "D", 1);
  ::setenv("AWS_ENDPOINT_URL", "http://not-for-google", 1);
  S3Access access = find_s3_access(true);
  EXPECT_EQ(access.key.id, "GOOG1");
  EXPECT_EQ(access.endpoint, "https://storage.googleapis.com");
  ::setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "ya29", 1);
  access = find_s3_access(true);
  EXPECT_EQ(access.bearer, "ya29");
  EXPECT_EQ(access.key.id, "");
}

TEST_F(Access, half_keys_and_foreign_profiles_are_refused) {
  const auto refusal = [] { return message_of([] { find_s3_access(false); }); };
  ::setenv("AWS_PROFILE", "none", 1);
  EXPECT_EQ(refusal(), "AWS_PROFILE = none: neither ~/.aws/credentials nor ~/.aws/config has it");
  ::setenv("AWS_PROFILE", "s", 1);
  write("config", "[profile s]\nsso_session=x\n");
  EXPECT_NE(refusal().find("by sso_session, which is not supported"), std::string::npos);
  write("credentials", "[s]\naws_access_key_id=A\n");
  EXPECT_NE(refusal().find("got one of them"), std::string::npos);
  ::setenv("AWS_ACCESS_KEY_ID", "A", 1);
  EXPECT_EQ(refusal(), "wanted AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, got one of them");
}

}  // namespace
}  // namespace tokamak
