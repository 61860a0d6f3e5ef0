#include "tokamak/data/parquet_lines.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include <dlfcn.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/own_library.h"
#include "tokamak/data/parquet_module.h"

namespace tokamak {
namespace {

constexpr const char* kLibrary = "libtokamak_parquet.so";

const TokamakParquetFunctions& load_parquet() {
  const std::filesystem::path path = find_own_library(kLibrary);
  TOK_REQUIRE(!path.empty(),
              "Parquet files need {} beside the program or in lib/tokamak of its prefix, which a "
              "build with Apache Arrow makes (tools/setup.sh build); or convert them into JSON "
              "lines",
              kLibrary);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TOK_REQUIRE(library != nullptr,
              "Parquet files need Apache Arrow's C++ library, which cannot be loaded ({})",
              dlerror());
  void* symbol = dlsym(library, "tokamak_parquet_functions");
  TOK_REQUIRE(symbol != nullptr, "{}: not of this build", path.string());
  return *reinterpret_cast<decltype(&tokamak_parquet_functions)>(symbol)();
}

const TokamakParquetFunctions& parquet() {
  static const TokamakParquetFunctions& functions = load_parquet();
  return functions;
}

class ParquetLines final : public ByteStream {
 public:
  ParquetLines(std::unique_ptr<RandomFile> file, const std::string& column)
      : file_(std::move(file)), column_(column), reader_(nullptr, parquet().close) {
    const TokamakParquetFile given{.file = this, .size = file_->size(), .read_at = &read_at};
    reader_.reset(parquet().open(&given, column.c_str()));
    check();
  }

  ParquetLines(const ParquetLines&) = delete;
  ParquetLines& operator=(const ParquetLines&) = delete;

  size_t read(std::span<char> out) override {
    if (at_ == lines_.size()) {
      lines_.clear();
      at_ = 0;
      while (lines_.size() < kBytesAtOnce && add_line()) {
      }
    }
    const size_t n = std::min(out.size(), lines_.size() - at_);
    std::memcpy(out.data(), lines_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  static constexpr size_t kBytesAtOnce = size_t{1} << 18;

  static int read_at(void* lines, int64_t offset, int64_t count, void* out) {
    auto& self = *static_cast<ParquetLines*>(lines);
    try {
      self.file_->read_at(offset, {static_cast<std::byte*>(out), static_cast<size_t>(count)});
      return 1;
    } catch (...) {
      const std::lock_guard lock(self.mutex_);
      if (!self.failure_) self.failure_ = std::current_exception();
      return 0;
    }
  }

  bool add_line() {
    const char* text = nullptr;
    int64_t size = 0;
    if (parquet().next(reader_.get(), &text, &size) == 0) {
      check();
      return false;
    }
    const Json line{{column_, std::string(text, static_cast<size_t>(size))}};
    lines_ += line.dump(-1, ' ', false, Json::error_handler_t::replace);
    lines_ += '\n';
    return true;
  }

  void check() {
    const char* error = parquet().error(reader_.get());
    if (error == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    fail("{}: {}", file_->name(), error);
  }

  std::unique_ptr<RandomFile> file_;
  std::string column_;
  std::mutex mutex_;
  std::exception_ptr failure_;  // of the file
  std::unique_ptr<void, void (*)(void*)> reader_;
  std::string lines_;
  size_t at_ = 0;
};

}  // namespace

std::string why_no_parquet() {
  try {
    parquet();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<ByteStream> open_parquet_lines(std::unique_ptr<RandomFile> file,
                                               const std::string& column) {
  return std::make_unique<ParquetLines>(std::move(file), column);
}

}  // namespace tokamak
