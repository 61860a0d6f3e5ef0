// Runs independent pieces of work on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace tokamak {

/// Runs work(0) ... work(count - 1) in any order. Throws the error with the lowest index.
void in_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work);

}  // namespace tokamak
