#include "tokamak/checkpoint/formats/safetensors.h"

#include <gtest/gtest.h>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/test_tensors.h"

namespace tokamak {
namespace {

using testing::oracle;
using testing::pattern;
using testing::ScratchFolder;
using testing::sources_of;

std::string framed(const std::string& json, size_t data_bytes = 0) {
  const uint64_t length = json.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + json + std::string(data_bytes, 'x');
}

SafetensorsHeader parse_header(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), std::ssize(file), "m.st");
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, what_is_written_is_read_back) {
  const ScratchFolder folder;
  const std::vector<TensorSource> tensors{
      pattern("b.small", DType::kBF16, {3}), pattern("a.wide", DType::kF32, {2, 3}, 5),
      pattern("flag", DType::kBool, {5}),    pattern("id", DType::kI64, {}),
      pattern("none", DType::kF32, {0, 4}),  pattern("big", DType::kF16, {3, 1'500'000})};
  write_safetensors(folder.path() / "m.safetensors", tensors, {{"format", "pt"}, {"k", "\"q\n"}});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "m.safetensors.tmp"));
  const SafetensorsFile file(folder.path() / "m.safetensors");
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"k", "\"q\n"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.tensors()[0].name, "id");
  for (const TensorSource& tensor : tensors) {
    const TensorView& view = file.at(tensor.name);
    EXPECT_EQ(view.dtype, tensor.dtype);
    EXPECT_EQ(view.dims, tensor.dims);
    EXPECT_EQ(read_all(source_of(view)), read_all(tensor)) << tensor.name;
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_ERROR(file.at("absent"), "there is no tensor \"absent\"");
}

TEST(Safetensors, a_model_of_the_reference_implementation_is_rewritten_byte_for_byte) {
  const ScratchFolder folder;
  for (const std::string model : {"llama_tiny", "llama_tied", "gpt2_tiny"}) {
    const SafetensorsFile file(oracle(model) / "model.safetensors");
    EXPECT_FALSE(file.tensors().empty());
    write_safetensors(folder.path() / "copy", sources_of(file.tensors()), file.metadata());
    EXPECT_EQ(read_file(folder.path() / "copy"), read_file(file.path())) << model;
  }
}

TEST(Safetensors, a_lying_header_is_refused_before_anything_is_allocated) {
  EXPECT_ERROR(parse_header(""), "too few");
  EXPECT_ERROR(parse_header("1234567"), "too few");
  EXPECT_ERROR(parse_header(std::string(8, '\xff')),
               "declares a header of 18446744073709551615 bytes");
  EXPECT_ERROR(parse_header(framed("{}").substr(0, 9)),
               "truncated: wanted a header of 2 bytes, got 1");
  EXPECT_ERROR(parse_header(framed("[]")), "not a JSON object");
  EXPECT_ERROR(parse_header(framed("{\"a\":")), "not valid JSON");
  EXPECT_ERROR(parse_header(framed("{\"a\":" + std::string(10'000, '['))), "nested deeper");
  EXPECT_ERROR(parse_header(framed(R"({"a":1})")),
               "m.st: tensor \"a\": wanted an object, got number");
  EXPECT_ERROR(parse_header(framed(R"({"a":{"dtype":"F32","shape":[],"shape":[]}})")),
               "given twice");
  EXPECT_ERROR(parse_header(framed(R"({"__metadata__":{"k":1}})")), "wanted a string");
}

TEST(Safetensors, a_lying_entry_is_refused) {
  EXPECT_EQ(parse_header(framed(one("F32", "[1]", "[0,4]"), 4)).entries.size(), 1U);
  EXPECT_ERROR(parse_header(framed(one("F8_E4M3", "[4]", "[0,4]"), 4)),
               "\"F8_E4M3\" is not supported");
  EXPECT_ERROR(parse_header(framed(one("F32", "[2]", "[0,4]"), 4)),
               "takes 8 bytes, data_offsets hold 4");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1]", "[0,4]"), 3)), "leave the 3 bytes of data");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1]", "[4,0]"), 4)), "leave the 4 bytes of data");
  EXPECT_ERROR(parse_header(framed(one("F32", "[-1]", "[0,4]"), 4)), "wanted integers from 0");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1.0]", "[0,4]"), 4)), "wanted integers from 0");
  EXPECT_ERROR(parse_header(framed(one("F32", "[18446744073709551615]", "[0,4]"), 4)),
               "wanted integers");
  EXPECT_ERROR(parse_header(framed(one("F32", "[4611686018427387904,4]", "[0,0]"))), "overflows");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1]", "[0,4,8]"), 8)), "wanted two data_offsets");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1]", "[0,4]"), 5)),
               "1 bytes after the last tensor");
  EXPECT_ERROR(parse_header(framed(one("F32", "[1]", "[1,5]"), 5)), "leaves a hole");
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_ERROR(parse_header(framed(one("U8", ones + "]", "[0,1]"), 1)),
               "65 dimensions, wanted at most 64");
}

TEST(Safetensors, tensors_may_not_share_bytes) {
  const std::string two = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})";
  EXPECT_ERROR(parse_header(framed(two, 6)), "tensor \"b\" overlaps the tensor before it");
}

TEST(Safetensors, every_truncation_of_a_file_is_refused) {
  const std::vector<TensorSource> tensors{pattern("a", DType::kF32, {3}),
                                          pattern("b", DType::kU8, {5})};
  const auto layout = lay_out_safetensors(tensors, {});
  std::string file;
  stream_safetensors(layout, tensors, [&](std::span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  ASSERT_EQ(std::ssize(file), layout.file_bytes);
  EXPECT_EQ(parse_header(file).entries.size(), 2U);
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW(parse_header(file.substr(0, size)), Error) << size;
  }
}

TEST(Safetensors, names_from_outside_stay_on_one_line) {
  EXPECT_EQ(shown("a\nb"), "\"a\\x0ab\"");
  EXPECT_EQ(shown(std::string(200, 'n')).size(), 125U);
}

TEST(Safetensors, the_writer_refuses_names_that_cannot_be_read_back) {
  const auto twice = std::vector{pattern("a", DType::kU8, {1}), pattern("a", DType::kU8, {1})};
  EXPECT_ERROR(lay_out_safetensors(twice, {}), "given twice");
  const auto reserved = std::vector{pattern("__metadata__", DType::kU8, {1})};
  EXPECT_ERROR(lay_out_safetensors(reserved, {}), "__metadata__");
}

TEST(Safetensors, an_old_file_survives_a_failed_write) {
  const ScratchFolder folder;
  const auto path = folder.path() / "m";
  write_safetensors(path, std::vector{pattern("a", DType::kU8, {1})});
  TensorSource broken = pattern("b", DType::kU8, {9});
  broken.read = [](int64_t, std::span<std::byte>) { throw SystemError("gone"); };
  EXPECT_THROW(write_safetensors(path, std::vector{broken}), SystemError);
  EXPECT_EQ(SafetensorsFile(path).tensors()[0].name, "a");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "m.tmp"));
}

}  // namespace
}  // namespace tokamak
