// Views of tensors that compute their elements: weights are renamed, cast, cut and permuted while
// they stream, a few megabytes at a time.
#pragma once

#include <cstdint>
#include <string>

#include "tokamak/checkpoint/tensor_source.h"

namespace tokamak {

/// Returns the same elements under another name.
TensorSource renamed(TensorSource tensor, std::string name);

/// Returns the elements as `dtype`; throws Error naming the tensor where a conversion needs floats.
TensorSource cast(const TensorSource& tensor, DType dtype);

/// Returns [rows, columns] as [columns, rows]. REQUIRES: the tensor has two dims.
TensorSource transposed(const TensorSource& tensor);

/// Returns `count` rows of the outermost dim from `first` on. REQUIRES: the rows exist.
TensorSource rows_of(const TensorSource& tensor, int64_t first, int64_t count);

/// Reorders the rows of a query or key projection with heads of even size, from Meta's order, whose
/// RoPE rotates neighbours (0, 1), (2, 3), ..., to Hugging Face's, whose RoPE rotates halves.
/// Throws Error naming the tensor if its rows are not whole heads.
TensorSource neighbours_to_halves(const TensorSource& tensor, int64_t num_heads);

}  // namespace tokamak
