// The rules of all ops, and helpers that rule files share.
#pragma once

#include <span>
#include <string_view>

#include "tokamak/core/error.h"
#include "tokamak/graph/graph.h"

namespace tokamak {

/// Returns the rules of every op of ops.def, in its order.
std::span<const OpRules* const> all_rules();

/// Returns the dtype of gradients of parameters and of sums over tokens: fp32, or fp64 where
/// everything is fp64 (tests).
DType gradient_dtype(DType compute);

/// Returns the product of all dims except the last: the rows of a token matrix.
int64_t rows_of(const TensorType& type);

/// Throws Error "OP: wanted A to B inputs, got N".
void require_inputs(std::string_view op, std::span<const TensorType> in, size_t at_least,
                    size_t at_most);

/// Throws Error unless both have the same dims: "OP: a is [..], b is [..]".
void require_same_dims(std::string_view op, std::string_view a_name, const TensorType& a,
                       std::string_view b_name, const TensorType& b);

/// Throws Error unless both have the same dims and dtype: "OP: a is float32[..], b is ..".
void require_same_type(std::string_view op, std::string_view a_name, const TensorType& a,
                       std::string_view b_name, const TensorType& b);

/// Returns the strategies of ops that treat rows alike: first everything replicated; then, for each
/// dim of `rows` except its last, the marked inputs and outputs cut there, the other inputs
/// replicated and the other outputs partial sums.
std::vector<Strategy> place_rows(const TensorType& rows, const std::vector<bool>& in_by_row,
                                 const std::vector<bool>& out_by_row);

}  // namespace tokamak
