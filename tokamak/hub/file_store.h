// Files that lie elsewhere: the objects of a bucket (s3://, gs://), the files of a hub's repository
// (hf:OWNER/NAME). They are listed, and read in ranges.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/random_file.h"

namespace tokamak {

struct StoredFile {
  std::string address;  ///< the whole one, as open_stored_file() takes it
  std::string name;     ///< relative to the address that was listed, or the file's own name
  int64_t size = 0;
  std::string tag;  ///< changes when the contents do: an ETag, a hash
};

/// Whether `path` is an address of a store and not a path of this machine.
bool is_stored(std::string_view path);

/// Returns the file `address`, or every file below it, in the order of their names. Throws Error
/// for what the user can change, and SystemError where the store cannot be reached or fails.
std::vector<StoredFile> list_stored_files(const std::string& address);

/// Opens a file that was listed. Its reads fail with Error where the store's tag is another by
/// then, and are tried again where the store or the connection fails.
std::unique_ptr<RandomFile> open_stored_file(const StoredFile& file);

}  // namespace tokamak
