// libtokamak_parquet.so: the texts of a Parquet file's column, by Apache Arrow.
#include "tokamak/data/parquet_module.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/caching.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

namespace {

using parquet::arrow::SchemaField;

constexpr int64_t kRowsAtOnce = 1024;
// Requests of this many bytes are under way at once; what lies between two that are near is read
// too, since a store takes about that long to answer.
constexpr int64_t kBytesAtOnce = int64_t{32} << 20;
constexpr int64_t kBytesBetween = int64_t{1} << 20;
// A damaged page may declare any size.
constexpr int64_t kMostMemory = int64_t{8} << 30;

[[noreturn]] void refuse(const std::string& reason) {
  throw std::runtime_error(reason.substr(0, reason.find('\n')));
}

void require(const arrow::Status& status) {
  if (!status.ok()) refuse(status.message());
}

template <class T>
T required(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

// Arrow's threads may still be about to read when nobody wants the bytes any more.
class ProgramsFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ProgramsFile(const TokamakParquetFile& file) : file_(file) {}

  arrow::Result<int64_t> GetSize() override { return file_.size; }

  arrow::Result<int64_t> ReadAt(int64_t position, int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(count, count_at(position, count));
    const std::shared_lock lock(mutex_);
    if (is_closed_ || file_.read_at(file_.file, position, count, out) == 0)
      return arrow::Status::IOError("the file cannot be read");
    return count;
  }

  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(count, count_at(position, count));
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateBuffer(count));
    ARROW_RETURN_NOT_OK(ReadAt(position, count, buffer->mutable_data()).status());
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

  arrow::Result<int64_t> Read(int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, count, out));
    at_ += got;
    return got;
  }

  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, count));
    at_ += buffer->size();
    return buffer;
  }

  arrow::Status Seek(int64_t position) override {
    at_ = position;
    return arrow::Status::OK();
  }

  arrow::Result<int64_t> Tell() const override { return at_; }

  /// No read is under way afterwards, and none begins.
  arrow::Status Close() override {
    const std::unique_lock lock(mutex_);
    is_closed_ = true;
    return arrow::Status::OK();
  }

  bool closed() const override { return is_closed_; }

 private:
  arrow::Result<int64_t> count_at(int64_t position, int64_t count) const {
    if (position < 0 || count < 0 || position > file_.size)
      return arrow::Status::IOError("a read outside of the file: it is damaged");
    return std::min(count, file_.size - position);
  }

  TokamakParquetFile file_;
  std::shared_mutex mutex_;
  int64_t at_ = 0;
  std::atomic<bool> is_closed_{false};
};

bool is_list(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::LIST_VIEW:
    case arrow::Type::LARGE_LIST_VIEW:
      return true;
    default:
      return false;
  }
}

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return arrow::is_base_binary_like(type.id()) || arrow::is_binary_view_like(type.id());
}

// Returns what the field holds once or, if it is a list, many times.
const SchemaField& item_of(const SchemaField& field) {
  const SchemaField* item = &field;
  while (is_list(*item->field->type()) && item->children.size() == 1) item = &item->children[0];
  return *item;
}

const std::vector<SchemaField>& members_of(const SchemaField& field) {
  static const std::vector<SchemaField> none;
  const SchemaField& item = item_of(field);
  return item.field->type()->id() == arrow::Type::STRUCT ? item.children : none;
}

// Finds the field of that very name, or else the member that "a.b" names.
const SchemaField* find(const std::vector<SchemaField>& fields, std::string_view column) {
  for (const SchemaField& field : fields)
    if (column == field.field->name()) return &field;
  for (const SchemaField& field : fields) {
    const std::string prefix = field.field->name() + ".";
    if (!column.starts_with(prefix)) continue;
    if (const SchemaField* found = find(members_of(field), column.substr(prefix.size())))
      return found;
  }
  return nullptr;
}

// Adds the names by which fields are found.
void add_names(const std::vector<SchemaField>& fields, const std::string& prefix,
               std::string& names) {
  for (const SchemaField& field : fields) {
    const std::string name = prefix + field.field->name();
    if (members_of(field).empty()) {
      names += (names.empty() ? "" : ", ") + name;
    } else {
      add_names(members_of(field), name + ".", names);
    }
  }
}

// Returns the number of the leaf that holds the texts of `column`.
int find_leaf(const std::vector<SchemaField>& fields, const std::string& column) {
  const SchemaField* found = find(fields, column);
  std::string names;
  add_names(found == nullptr ? fields : members_of(*found), found == nullptr ? "" : column + ".",
            names);
  if (found == nullptr)
    refuse("wanted a column \"" + column + "\" of strings, there are " + names +
           "; text_column names the one to read");
  const SchemaField& item = item_of(*found);
  if (!members_of(*found).empty())
    refuse("column \"" + column + "\": wanted strings, got members; name one of " + names);
  if (!item.is_leaf() || !is_text(*item.field->type()))
    refuse("column \"" + column + "\": wanted strings, got " + item.field->type()->ToString());
  return item.column_index;
}

void add_texts(const arrow::Array& array, int64_t row, std::vector<std::string_view>& texts);

template <class List>
void add_items(const arrow::Array& array, int64_t row, std::vector<std::string_view>& texts) {
  const auto& list = static_cast<const List&>(array);
  for (int64_t i = 0; i < list.value_length(row); ++i)
    add_texts(*list.values(), list.value_offset(row) + i, texts);
}

// Adds the strings of a row, of which a list has any number, and a null none.
void add_texts(const arrow::Array& array, int64_t row, std::vector<std::string_view>& texts) {
  if (array.IsNull(row)) return;
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return texts.push_back(static_cast<const arrow::BinaryArray&>(array).GetView(row));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return texts.push_back(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return texts.push_back(static_cast<const arrow::BinaryViewArray&>(array).GetView(row));
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return add_texts(*coded.dictionary(), coded.GetValueIndex(row), texts);
    }
    case arrow::Type::STRUCT:
      return add_texts(*static_cast<const arrow::StructArray&>(array).field(0), row, texts);
    case arrow::Type::LIST:
      return add_items<arrow::ListArray>(array, row, texts);
    case arrow::Type::LARGE_LIST:
      return add_items<arrow::LargeListArray>(array, row, texts);
    case arrow::Type::FIXED_SIZE_LIST:
      return add_items<arrow::FixedSizeListArray>(array, row, texts);
    case arrow::Type::LIST_VIEW:
      return add_items<arrow::ListViewArray>(array, row, texts);
    case arrow::Type::LARGE_LIST_VIEW:
      return add_items<arrow::LargeListViewArray>(array, row, texts);
    default:
      refuse("wanted strings, got " + array.type()->ToString());
  }
}

// Reads row groups together until their chunks of the column have kBytesAtOnce.
class ColumnTexts {
 public:
  ColumnTexts(const TokamakParquetFile& file, const std::string& column)
      : pool_(arrow::default_memory_pool(), kMostMemory),
        file_(std::make_shared<ProgramsFile>(file)),
        column_name_(column) {
    parquet::ReaderProperties properties(&pool_);
    properties.set_page_checksum_verification(true);  // where pages have one
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_batch_size(kRowsAtOnce);
    arrow_properties.set_pre_buffer(true);
    arrow_properties.set_cache_options(
        {.hole_size_limit = kBytesBetween, .range_size_limit = kBytesAtOnce, .lazy = false});
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(file_, properties));
    reader_ = required(builder.memory_pool(&pool_)->properties(arrow_properties)->Build());
    file_data_ = reader_->parquet_reader()->metadata();
    for (int i = 0; i < file_data_->num_row_groups(); ++i)
      rows_left_ += file_data_->RowGroup(i)->num_rows();
    if (rows_left_ != file_data_->num_rows())
      refuse("declares " + std::to_string(file_data_->num_rows()) + " rows, but " +
             std::to_string(rows_left_) + " in its row groups: the file is damaged");
    leaf_ = find_leaf(reader_->manifest().schema_fields, column);
  }

  ColumnTexts(const ColumnTexts&) = delete;
  ColumnTexts& operator=(const ColumnTexts&) = delete;

  ~ColumnTexts() { static_cast<void>(file_->Close()); }

  bool next(std::string_view& text) {
    while (batch_ == nullptr || row_ == batch_->num_rows())
      if (!next_batch()) return false;
    texts_.clear();
    add_texts(*batch_->column(0), row_++, texts_);
    text = texts_.empty() ? std::string_view() : texts_[0];
    if (texts_.size() < 2) return true;
    joined_ = texts_[0];
    for (size_t i = 1; i < texts_.size(); ++i) (joined_ += '\n') += texts_[i];
    text = joined_;
    return true;
  }

 private:
  bool next_batch() {
    batch_.reset();
    row_ = 0;
    if (batches_ != nullptr) require(batches_->ReadNext(&batch_));
    if (batch_ != nullptr) {
      rows_left_ -= batch_->num_rows();
      return true;
    }
    if (next_group_ < file_data_->num_row_groups()) {
      next_groups();
      return true;
    }
    if (rows_left_ != 0)
      refuse(std::to_string(rows_left_) + " of its rows are missing in column \"" + column_name_ +
             "\": the file is damaged");
    return false;
  }

  void next_groups() {
    std::vector<int> groups;
    for (int64_t bytes = 0; next_group_ < file_data_->num_row_groups() && bytes < kBytesAtOnce;) {
      const auto chunk = file_data_->RowGroup(next_group_)->ColumnChunk(leaf_);
      bytes += std::max<int64_t>(0, chunk->total_compressed_size());
      groups.push_back(next_group_++);
    }
    batches_ = required(reader_->GetRecordBatchReader(groups, {leaf_}));
  }

  arrow::CappedMemoryPool pool_;
  std::shared_ptr<ProgramsFile> file_;
  std::string column_name_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> file_data_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<std::string_view> texts_;
  std::string joined_;
  int64_t row_ = 0;
  int64_t rows_left_ = 0;
  int next_group_ = 0;
  int leaf_ = 0;
};

struct Reader {
  std::unique_ptr<ColumnTexts> texts;
  std::string error;
};

template <class Call>
bool try_call(Reader& reader, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    reader.error = error.what();
    return false;
  }
}

void* open(const TokamakParquetFile* file, const char* column) {
  auto reader = std::make_unique<Reader>();
  try_call(*reader, [&] {
    reader->texts = std::make_unique<ColumnTexts>(*file, column);
    return true;
  });
  return reader.release();
}

int next(void* opened, const char** text, int64_t* size) {
  auto& reader = *static_cast<Reader*>(opened);
  std::string_view found;
  if (!try_call(reader, [&] { return reader.texts->next(found); })) return 0;
  *text = found.data();
  *size = static_cast<int64_t>(found.size());
  return 1;
}

const char* error(void* opened) {
  const std::string& text = static_cast<Reader*>(opened)->error;
  return text.empty() ? nullptr : text.c_str();
}

void close(void* opened) {
  delete static_cast<Reader*>(opened);
}

constexpr TokamakParquetFunctions kFunctions{open, next, error, close};

}  // namespace

const TokamakParquetFunctions* tokamak_parquet_functions() {
  return &kFunctions;
}
