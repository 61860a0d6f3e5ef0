#include "tokamak/data/parquet_lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

constexpr int64_t kRowsAtOnce = 1024;

// Rows of column "text", one batch after another.
class ParquetLines final : public ByteStream {
 public:
  explicit ParquetLines(std::string name) : name_(std::move(name)) {
    auto file = arrow::io::ReadableFile::Open(name_);
    require(file.status());
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(*file));
    auto made = builder.Build();
    require(made.status());
    reader_ = std::move(*made);
    reader_->set_batch_size(kRowsAtOnce);
    reader_->set_use_threads(false);
    const auto& columns = *reader_->parquet_reader()->metadata()->schema();
    const int column = columns.ColumnIndex("text");
    TOK_REQUIRE(column >= 0, "{}: wanted a column \"text\"", name_);
    std::vector<int> groups(reader_->num_row_groups());
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    auto batches = reader_->GetRecordBatchReader(groups, {column});
    require(batches.status());
    batches_ = std::move(*batches);
  }

  size_t read(std::span<char> out) override {
    while (at_ == lines_.size()) {
      std::shared_ptr<arrow::RecordBatch> batch;
      require(batches_->ReadNext(&batch));
      if (batch == nullptr) return 0;
      lines_.clear();
      at_ = 0;
      add(*batch->column(0));
    }
    const size_t n = std::min(out.size(), lines_.size() - at_);
    std::memcpy(out.data(), lines_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  void require(const arrow::Status& status) const {
    TOK_REQUIRE(status.ok(), "{}: {}", name_, status.message());
  }

  void add(const arrow::Array& texts) {
    switch (texts.type_id()) {
      case arrow::Type::STRING:
        return add_all(static_cast<const arrow::StringArray&>(texts));
      case arrow::Type::LARGE_STRING:
        return add_all(static_cast<const arrow::LargeStringArray&>(texts));
      default:
        fail("{}: column \"text\": wanted strings, got {}", name_, texts.type()->ToString());
    }
  }

  template <class Array>
  void add_all(const Array& texts) {
    for (int64_t i = 0; i < texts.length(); ++i) {
      const Json line{{"text", texts.IsNull(i) ? std::string() : std::string(texts.GetView(i))}};
      lines_ += line.dump(-1, ' ', false, Json::error_handler_t::replace);
      lines_ += '\n';
    }
  }

  std::string name_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::string lines_;
  size_t at_ = 0;
};

}  // namespace

std::string why_no_parquet() {
  return {};
}

std::unique_ptr<ByteStream> open_parquet_lines(const std::filesystem::path& path) {
  try {
    return std::make_unique<ParquetLines>(path.string());
  } catch (const parquet::ParquetException& error) {
    fail("{}: {}", path.string(), error.what());
  }
}

}  // namespace tokamak
