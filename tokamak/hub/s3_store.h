// The objects of a bucket as stored files (file_store.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/core/random_file.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {

/// Returns the object of an address s3://BUCKET/KEY or gs://BUCKET/KEY, or all below it.
std::vector<StoredFile> list_s3(const std::string& address);

/// Opens an object that list_s3() returned, as open_stored_file() does.
std::unique_ptr<RandomFile> open_s3(const StoredFile& file);

}  // namespace tokamak
