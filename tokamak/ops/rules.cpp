#include "tokamak/ops/rules.h"

#include <array>

#include "tokamak/ops/table.h"

namespace tokamak {
namespace {

#define X(stem, Type) &kRules<Type>,
constexpr std::array kAll{TOK_FOR_EACH_OP(X)};
#undef X

}  // namespace

std::span<const OpRules* const> all_rules() {
  return kAll;
}

DType gradient_dtype(DType compute) {
  return compute == DType::kF64 ? DType::kF64 : DType::kF32;
}

int64_t rows_of(const TensorType& type) {
  return type.dims.back() == 0 ? 0 : type.numel() / type.dims.back();
}

void require_inputs(std::string_view op, std::span<const TensorType> in, size_t at_least,
                    size_t at_most) {
  TOK_REQUIRE(in.size() >= at_least && in.size() <= at_most, "{}: wanted {} to {} inputs, got {}",
              op, at_least, at_most, in.size());
}

void require_same_dims(std::string_view op, std::string_view a_name, const TensorType& a,
                       std::string_view b_name, const TensorType& b) {
  TOK_REQUIRE(a.dims == b.dims, "{}: dims differ: {} is {}, {} is {}", op, a_name,
              to_string(a.dims), b_name, to_string(b.dims));
}

void require_same_type(std::string_view op, std::string_view a_name, const TensorType& a,
                       std::string_view b_name, const TensorType& b) {
  TOK_REQUIRE(a == b, "{}: types differ: {} is {}, {} is {}", op, a_name, to_string(a), b_name,
              to_string(b));
}

std::vector<Strategy> place_rows(const TensorType& rows, const std::vector<bool>& in_by_row,
                                 const std::vector<bool>& out_by_row) {
  std::vector<Strategy> all{replicate(in_by_row.size(), out_by_row.size())};
  for (int d = 0; d + 1 < static_cast<int>(rows.dims.size()); ++d) {
    Strategy s;
    for (const bool by_row : in_by_row) s.in.push_back(by_row ? cut(d) : kReplicated);
    for (const bool by_row : out_by_row) s.out.push_back(by_row ? cut(d) : kPartialSum);
    all.push_back(std::move(s));
  }
  return all;
}

}  // namespace tokamak
