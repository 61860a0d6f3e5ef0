#include "tokamak/core/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace tokamak {

void in_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    const size_t num = std::min(count, static_cast<size_t>(std::max(1, num_threads)));
    for (size_t t = 1; t < num; ++t) threads.emplace_back(run);
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): fewer threads do the work
  }
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tokamak
