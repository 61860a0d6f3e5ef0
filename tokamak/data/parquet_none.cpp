#include "tokamak/core/error.h"
#include "tokamak/data/parquet_lines.h"

namespace tokamak {

std::string why_no_parquet() {
  return "Parquet files need a program built with -DTOK_PARQUET=ON (Apache Arrow's C++ library); "
         "or convert them into JSON lines";
}

std::unique_ptr<ByteStream> open_parquet_lines(const std::filesystem::path& path) {
  fail("{}: {}", path.string(), why_no_parquet());
}

}  // namespace tokamak
