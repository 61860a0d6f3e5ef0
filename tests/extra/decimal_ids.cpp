// A file of token ids as decimal numbers between blanks.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tokamak/core/error.h"
#include "tokamak/data/open_source.h"

namespace tokamak {
namespace {

class DecimalIds final : public TokenSource {
 public:
  explicit DecimalIds(const std::string& path) : name_(path) {
    std::ifstream file(path);
    ids_.assign(std::istream_iterator<int32_t>(file), {});
    TOK_REQUIRE(file.eof(), "{}: wanted token ids as decimal numbers, got something else after {}",
                path, ids_.size());
  }

  int64_t wait_for(int64_t, const std::stop_token&) override { return *size(); }

  std::optional<int64_t> size() override { return static_cast<int64_t>(ids_.size()); }

  void read(int64_t first, std::span<int32_t> out) override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }

  std::string describe(int64_t index, int32_t id) override {
    return name_ + ": token " + std::to_string(index) + ": id " + std::to_string(id);
  }

  bool carries_tail() const override { return true; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const int32_t id : ids_) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
    return hash;
  }

 private:
  std::string name_;
  std::vector<int32_t> ids_;
};

std::unique_ptr<TokenSource> open_ids(const DataOptions&, const std::string& path) {
  return std::make_unique<DecimalIds>(path);
}

}  // namespace

extern const ExtraDataset kDecimalIds{.name = "decimal_ids", .open = open_ids};

}  // namespace tokamak
