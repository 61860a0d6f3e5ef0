// The few texts that a program needs of S3's XML: an object's key, size and tag, the id of an
// upload, the code of an error. They are leaves of known names, and S3 has no attributes that
// matter, so that a tag is found by its name and no tree is built.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

struct S3Object {
  std::string key;
  int64_t size = 0;
  std::string tag;  ///< its ETag, in quotes as the store writes it
};

/// One page of a bucket's list of objects.
struct S3Page {
  std::vector<S3Object> objects;
  std::string next;  ///< the token of the next page; "" of the last one
};

/// Reads an answer to ListObjectsV2. Throws Error naming `what` where it is none, or has a key that
/// could not be printed or a size that is no number.
S3Page parse_s3_list(std::string_view xml, const std::string& what);

/// Returns the text of the first element `name`, or "".
std::string xml_text(std::string_view xml, std::string_view name);

}  // namespace tokamak
