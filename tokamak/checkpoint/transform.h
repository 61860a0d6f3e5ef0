// Views of tensors that compute what they yield: weights are renamed, cast, cut and permuted while
// they stream, a few megabytes at a time.
#pragma once

#include <cstdint>
#include <string>

#include "tokamak/checkpoint/tensor_source.h"

namespace tokamak {

/// The same elements under another name.
TensorSource renamed(TensorSource tensor, std::string name);

/// The same elements as `dtype`; throws Error naming the tensor where a type is no float.
TensorSource cast(const TensorSource& tensor, DType dtype);

/// [rows, columns] as [columns, rows]. REQUIRES: two dims.
TensorSource transposed(const TensorSource& tensor);

/// `count` rows of the outermost dim from `first` on. REQUIRES: they are there.
TensorSource rows_of(const TensorSource& tensor, int64_t first, int64_t count);

/// The rows of a query or key projection, heads of even size, from the order in which Meta's RoPE
/// rotates neighbours (0, 1), (2, 3), ... to the one in which Hugging Face's rotates halves. Throws
/// Error naming the tensor if its rows are not whole heads.
TensorSource neighbours_to_halves(const TensorSource& tensor, int64_t num_heads);

}  // namespace tokamak
