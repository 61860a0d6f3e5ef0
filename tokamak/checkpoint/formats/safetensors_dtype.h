// The element types that safetensors and this project share. Include it in .cpp files only.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// Each type and its spelling, in the order in which the reference implementation writes data.
inline constexpr std::array kSafetensorsDTypes{
    std::pair{DType::kI64, std::string_view("I64")},
    std::pair{DType::kF64, std::string_view("F64")},
    std::pair{DType::kF32, std::string_view("F32")},
    std::pair{DType::kU32, std::string_view("U32")},
    std::pair{DType::kI32, std::string_view("I32")},
    std::pair{DType::kBF16, std::string_view("BF16")},
    std::pair{DType::kF16, std::string_view("F16")},
    std::pair{DType::kU16, std::string_view("U16")},
    std::pair{DType::kU8, std::string_view("U8")},
    std::pair{DType::kBool, std::string_view("BOOL")},
};

}  // namespace tokamak
