#include "tokamak/train/state/model_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/formats/weight_names.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

// Returns the first element from which on the tensors differ, or -1.
int64_t first_difference(const TensorSource& a, const TensorSource& b) {
  const int64_t width = size_of(a.dtype);
  const int64_t step = kStreamBytes / width;
  std::vector<std::byte> of_a(static_cast<size_t>(kStreamBytes));
  std::vector<std::byte> of_b(of_a.size());
  for (int64_t first = 0, total = a.type().numel(); first < total; first += step) {
    const auto bytes = static_cast<size_t>(std::min(step, total - first) * width);
    a.read(first, std::span(of_a).first(bytes));
    b.read(first, std::span(of_b).first(bytes));
    if (std::memcmp(of_a.data(), of_b.data(), bytes) != 0) return first;
  }
  return -1;
}

// Some programs store a tied head twice. Two that differ are another model.
void check_tied_head(const TensorSource& head, const TensorSource& table,
                     const std::string& where) {
  TOK_REQUIRE(
      head.type() == table.type() && first_difference(head, table) < 0,
      "{}: the configuration ties the head to the embedding, but tensor {} differs from {}; set "
      "\"tie_word_embeddings\" to false, or leave out one of them",
      where, shown(head.name), shown(table.name));
}

bool is_turned(const Dims& got, const Dims& wanted) {
  return got.size() == 2 && wanted.size() == 2 && got[0] == wanted[1] && got[1] == wanted[0];
}

template <class Bits>
int64_t first_not_finite(std::span<const std::byte> bytes, Bits exponent) {
  for (size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    if ((bits & exponent) == exponent) return static_cast<int64_t>(i / sizeof(Bits));
  }
  return -1;
}

int64_t first_not_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return first_not_finite<uint64_t>(bytes, 0x7FF0'0000'0000'0000U);
    case DType::kF32:
      return first_not_finite<uint32_t>(bytes, 0x7F80'0000U);
    case DType::kBF16:
      return first_not_finite<uint16_t>(bytes, 0x7F80U);
    case DType::kF16:
      return first_not_finite<uint16_t>(bytes, 0x7C00U);
    default:
      return -1;
  }
}

// Returns the first such element, or -1.
int64_t first_not_finite(const TensorSource& tensor) {
  int64_t first = 0;
  int64_t found = -1;
  stream(tensor, [&](std::span<const std::byte> bytes) {
    const int64_t at = found < 0 ? first_not_finite(bytes, tensor.dtype) : -1;
    if (at >= 0) found = first + at;
    first += std::ssize(bytes) / size_of(tensor.dtype);
  });
  return found;
}

}  // namespace

std::vector<TensorSource> parameters_of_model(const ModelSpec& config,
                                              std::span<const TensorSource> found,
                                              const std::string& where) {
  const ModelParameters model = model_parameters(config);
  std::vector<TensorSource> parameters;
  std::set<std::string_view> names;
  const TensorSource* table = nullptr;
  const TensorSource* tied_head = nullptr;
  for (const TensorSource& tensor : found) {
    if (is_for_images(tensor.name)) continue;
    const auto wanted = model.dims.find(tensor.name);
    if (wanted == model.dims.end()) {
      TOK_REQUIRE(tensor.name == kHead,
                  "{}: tensor {} is not one of the configured model ({} layers, {})", where,
                  shown(tensor.name), config.num_layers,
                  config.tied ? "a tied head" : "a head of its own");
      tied_head = &tensor;
      continue;
    }
    TOK_REQUIRE(tensor.dims == wanted->second,
                "{}: tensor {} is {}, the configuration makes it {}{}", where, shown(tensor.name),
                to_string(tensor.dims), to_string(wanted->second),
                is_turned(tensor.dims, wanted->second) ? ": it is transposed" : "");
    TOK_REQUIRE(is_float(tensor.dtype), "{}: tensor {} holds {}, wanted floats", where,
                shown(tensor.name), name_of(tensor.dtype));
    if (tensor.name == model.head) table = &tensor;
    names.insert(tensor.name);
    parameters.push_back(tensor);
  }
  const auto is_missing = [&](const auto& wanted) { return !names.contains(wanted.first); };
  const auto missing = std::ranges::find_if(model.dims, is_missing);
  TOK_REQUIRE(missing == model.dims.end(),
              "{}: {} of the {} tensors of the model that is configured are missing, the "
              "first is {}",
              where, std::ranges::count_if(model.dims, is_missing), model.dims.size(),
              shown(missing->first));
  if (tied_head != nullptr) check_tied_head(*tied_head, *table, where);
  return parameters;
}

std::string left_out_of(std::span<const TensorSource> found, const std::string& where) {
  const auto count = std::ranges::count_if(
      found, [](const TensorSource& tensor) { return is_for_images(tensor.name); });
  if (count == 0) return {};
  return fmt::format(
      "{}: left out {} tensors for images (vision_tower, multi_modal_projector); the model is the "
      "text model alone",
      where, count);
}

void check_finite(std::span<const TensorSource> tensors, DType stored, const std::string& where) {
  for (const TensorSource& tensor : tensors) {
    const int64_t broken = first_not_finite(tensor);
    TOK_REQUIRE(broken < 0, "{}: tensor {}: element {} is NaN or infinite", where,
                shown(tensor.name), broken);
    if (stored != DType::kF16 && tensor.dtype != DType::kF64) continue;
    const int64_t too_large = first_not_finite(cast(tensor, stored));
    TOK_REQUIRE(too_large < 0, "{}: tensor {}: element {} is too large for {}", where,
                shown(tensor.name), too_large, name_of(stored));
  }
}

}  // namespace tokamak
