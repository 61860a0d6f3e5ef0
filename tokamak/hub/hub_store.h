// The files of a dataset's repository on a hub as stored files (file_store.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/core/random_file.h"
#include "tokamak/hub/file_store.h"

namespace tokamak {

/// hf:OWNER/NAME, hf:OWNER/NAME@REVISION, each also with #FOLDER or #FILE.
struct HubAddress {
  std::string repository;
  std::string revision = "main";
  std::string path;  ///< in the repository; "" for all of it
};

/// Throws Error where `text` is no such address.
HubAddress parse_hub_address(const std::string& text);

/// Returns the file of an address or all below it, without those whose names begin with a dot. The
/// addresses that it returns name the commit, so what they hold does not change.
std::vector<StoredFile> list_hub(const std::string& address);

/// Opens a file that list_hub() returned, as open_stored_file() does.
std::unique_ptr<RandomFile> open_hub(const StoredFile& file);

}  // namespace tokamak
