// How far a long work is, for whoever waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace tokamak {

/// Told now and then what is done of how much: ("ranks planned", 3, 576). Empty where nobody asks.
using Progress = std::function<void(std::string_view what, int64_t done, int64_t total)>;

}  // namespace tokamak
