#include "tokamak/hub/file_store.h"

#include "tokamak/hub/hub_store.h"
#include "tokamak/hub/s3_bucket.h"
#include "tokamak/hub/s3_store.h"

namespace tokamak {
namespace {

bool is_on_hub(std::string_view path) {
  return path.starts_with("hf:");
}

}  // namespace

bool is_stored(std::string_view path) {
  return is_on_hub(path) || is_s3(path);
}

std::vector<StoredFile> list_stored_files(const std::string& address) {
  return is_on_hub(address) ? list_hub(address) : list_s3(address);
}

std::unique_ptr<RandomFile> open_stored_file(const StoredFile& file) {
  return is_on_hub(file.address) ? open_hub(file) : open_s3(file);
}

}  // namespace tokamak
