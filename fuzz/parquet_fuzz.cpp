#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/data/parquet_lines.h"

#include "fuzz/fuzz.h"

namespace {

class BytesInMemory final : public tokamak::RandomFile {
 public:
  explicit BytesInMemory(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::string& name() const override { return name_; }

  int64_t size() const override { return std::ssize(bytes_); }

  void read_at(int64_t offset, std::span<std::byte> out) override {
    TOK_CHECK(offset >= 0 && offset <= size() && std::ssize(out) <= size() - offset);
    std::ranges::copy(bytes_.subspan(static_cast<size_t>(offset), out.size()), out.begin());
  }

 private:
  std::string name_ = "fuzz.parquet";
  std::span<const std::byte> bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tokamak::fuzz_bytes(data, size, [](std::span<const std::byte> bytes) {
    const auto lines =
        tokamak::open_parquet_lines(std::make_unique<BytesInMemory>(bytes), "messages.content");
    std::vector<char> out(1 << 16);
    size_t total = 0;
    for (size_t got = 1; got > 0 && total < size_t{1} << 24U; total += got) got = lines->read(out);
  });
}
