#include "tokamak/core/error.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {

std::string why_no_parquet() {
  return "Parquet files want a program that was built with -DTOK_PARQUET=ON (Apache Arrow's C++ "
         "library); or write JSON lines of them";
}

std::unique_ptr<ByteStream> open_parquet_lines(const std::filesystem::path& path) {
  fail("{}: {}", path.string(), why_no_parquet());
}

}  // namespace tokamak
