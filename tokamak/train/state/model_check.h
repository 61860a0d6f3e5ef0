// Checks that weights are those of the model that a config.json describes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// Returns the parameters of the model `config` among `found`, in their order. Throws Error, which
/// begins with `where`, if one is missing or has other dims, or if there is a tensor that is none
/// of the model's. A stored copy of a tied head is read, compared and left out, and so are
/// tensors for images.
std::vector<TensorSource> parameters_of_model(const ModelSpec& config,
                                              std::span<const TensorSource> found,
                                              const std::string& where);

/// Returns a line about the tensors for images among `found`, or nothing if there are none.
std::string left_out_of(std::span<const TensorSource> found, const std::string& where);

/// Reads all tensors; throws Error naming tensor and element where a value is NaN or infinite, or
/// becomes so as `stored`.
void check_finite(std::span<const TensorSource> tensors, DType stored, const std::string& where);

}  // namespace tokamak
