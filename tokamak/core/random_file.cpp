#include "tokamak/core/random_file.h"

#include <cerrno>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

class LocalFile final : public RandomFile {
 public:
  explicit LocalFile(std::string name) : name_(std::move(name)), fd_(open_regular_file(name_)) {
    struct stat status {};

    if (::fstat(fd_.get(), &status) != 0) throw_path_errno("cannot read " + name_);
    size_ = status.st_size;
  }

  const std::string& name() const override { return name_; }

  int64_t size() const override { return size_; }

  void read_at(int64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t count = ::pread(fd_.get(), out.data(), out.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno("read " + name_);
      TOK_REQUIRE(count > 0, "{}: the file ends at byte {}, it had {}", name_, offset, size_);
      out = out.subspan(static_cast<size_t>(count));
      offset += count;
    }
  }

 private:
  std::string name_;
  OwnedFd fd_;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<RandomFile> open_local_file(const std::filesystem::path& path) {
  return std::make_unique<LocalFile>(path.string());
}

}  // namespace tokamak
