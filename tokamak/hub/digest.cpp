#include "tokamak/hub/digest.h"

#include <memory>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

std::string hash(const EVP_MD* kind, const std::string& prefix, std::span<const std::byte> bytes) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const bool done = context != nullptr && EVP_DigestInit_ex(context.get(), kind, nullptr) == 1 &&
                    EVP_DigestUpdate(context.get(), prefix.data(), prefix.size()) == 1 &&
                    EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1 &&
                    EVP_DigestFinal_ex(context.get(), digest, &size) == 1;
  TOK_CHECK(done, "libcrypto hashes nothing");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace

std::string sha256_of(const std::filesystem::path& path) {
  const MappedFile file(path);
  return hash(EVP_sha256(), "", file.bytes());
}

std::string sha256_of(std::span<const std::byte> bytes) {
  return hash(EVP_sha256(), "", bytes);
}

std::string git_blob_id(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string prefix = fmt::format("blob {}", file.bytes().size());
  prefix.push_back('\0');
  return hash(EVP_sha1(), prefix, file.bytes());
}

}  // namespace tokamak
