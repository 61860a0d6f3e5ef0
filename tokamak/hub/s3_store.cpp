#include "tokamak/hub/s3_store.h"

#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/hub/s3_bucket.h"

namespace tokamak {
namespace {

class ObjectFile final : public RandomFile {
 public:
  explicit ObjectFile(const StoredFile& file) : name_(file.address) {
    const S3Address address = parse_s3_address(file.address);
    bucket_ = shared_bucket(address);
    object_ = {.key = address.key, .size = file.size, .tag = file.tag};
  }

  const std::string& name() const override { return name_; }

  int64_t size() const override { return object_.size; }

  void read_at(int64_t offset, std::span<std::byte> out) override {
    TOK_REQUIRE(offset + std::ssize(out) <= object_.size,
                "{}: the file ends at byte {}, wanted those up to {}", printable(name_),
                object_.size, offset + std::ssize(out));
    bucket_->read(object_, offset, out);
  }

 private:
  std::string name_;
  std::shared_ptr<S3Bucket> bucket_;
  S3Object object_;
};

}  // namespace

std::vector<StoredFile> list_s3(const std::string& address) {
  const S3Address where = parse_s3_address(address);
  const auto bucket = shared_bucket(where);
  const bool is_folder = where.key.empty() || where.key.ends_with('/');
  if (!is_folder) {
    if (const auto object = bucket->find(where.key)) {
      return {{.address = address,
               .name = where.key.substr(where.key.rfind('/') + 1),
               .size = object->size,
               .tag = object->tag}};
    }
  }
  const std::string prefix = is_folder ? where.key : where.key + "/";
  std::vector<StoredFile> files;
  for (S3Object& object : bucket->list(prefix)) {
    if (object.key.ends_with('/')) continue;  // a console's mark for a folder
    files.push_back({.address = bucket->address_of(object.key),
                     .name = object.key.substr(prefix.size()),
                     .size = object.size,
                     .tag = std::move(object.tag)});
  }
  TOK_REQUIRE(!files.empty(), "{}: there is no such object, and none below it", printable(address));
  return files;
}

std::unique_ptr<RandomFile> open_s3(const StoredFile& file) {
  return std::make_unique<ObjectFile>(file);
}

}  // namespace tokamak
