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
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);  // where pages have one
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(*file, properties));
    auto made = builder.Build();
    require(made.status());
    reader_ = std::move(*made);
    reader_->set_batch_size(kRowsAtOnce);
    reader_->set_use_threads(false);
    const parquet::FileMetaData& file_data = *reader_->parquet_reader()->metadata();
    for (int i = 0; i < file_data.num_row_groups(); ++i)
      rows_left_ += file_data.RowGroup(i)->num_rows();
    TOK_REQUIRE(rows_left_ == file_data.num_rows(),
                "{}: declares {} rows, but {} in its row groups: the file is damaged", name_,
                file_data.num_rows(), rows_left_);
    const auto& columns = *file_data.schema();
    const int column = columns.ColumnIndex("text");
    TOK_REQUIRE(column >= 0, "{}: wanted a column \"text\" of strings, there are {}", name_,
                names_of(columns));
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
      rows_left_ -= batch == nullptr ? 0 : batch->num_rows();
      TOK_REQUIRE(batch != nullptr || rows_left_ == 0,
                  "{}: {} of its rows are missing in column \"text\": the file is damaged", name_,
                  rows_left_);
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
    if (status.ok()) return;
    const std::string& message = status.message();
    fail("{}: {}", name_, message.substr(0, message.find('\n')));
  }

  static std::string names_of(const parquet::SchemaDescriptor& columns) {
    std::string names;
    for (int i = 0; i < columns.group_node()->field_count(); ++i) {
      if (i > 0) names += ", ";
      names += columns.group_node()->field(i)->name();
      if (columns.group_node()->field(i)->is_group()) names += " (nested)";
    }
    return names;
  }

  // Adds a line for each row of `texts`, or, where given, for each index of one.
  void add(const arrow::Array& texts, const arrow::DictionaryArray* indices = nullptr) {
    switch (texts.type_id()) {
      case arrow::Type::STRING:
      case arrow::Type::BINARY:
        return add_all(static_cast<const arrow::BinaryArray&>(texts), indices);
      case arrow::Type::LARGE_STRING:
      case arrow::Type::LARGE_BINARY:
        return add_all(static_cast<const arrow::LargeBinaryArray&>(texts), indices);
      case arrow::Type::STRING_VIEW:
      case arrow::Type::BINARY_VIEW:
        return add_all(static_cast<const arrow::BinaryViewArray&>(texts), indices);
      case arrow::Type::DICTIONARY: {
        const auto& coded = static_cast<const arrow::DictionaryArray&>(texts);
        if (coded.dictionary()->type_id() != arrow::Type::DICTIONARY)
          return add(*coded.dictionary(), &coded);
        [[fallthrough]];
      }
      default:
        fail("{}: column \"text\": wanted strings, got {}", name_, texts.type()->ToString());
    }
  }

  template <class Array>
  void add_all(const Array& texts, const arrow::DictionaryArray* indices) {
    const int64_t rows = indices == nullptr ? texts.length() : indices->length();
    for (int64_t i = 0; i < rows; ++i) {
      const bool is_null = indices == nullptr ? texts.IsNull(i) : indices->IsNull(i);
      const int64_t at = indices == nullptr || is_null ? i : indices->GetValueIndex(i);
      const Json line{{"text", is_null ? std::string() : std::string(texts.GetView(at))}};
      lines_ += line.dump(-1, ' ', false, Json::error_handler_t::replace);
      lines_ += '\n';
    }
  }

  std::string name_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::string lines_;
  size_t at_ = 0;
  int64_t rows_left_ = 0;
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
