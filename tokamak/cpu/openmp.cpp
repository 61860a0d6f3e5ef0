// The functions of OpenMP's runtime that GCC makes of our loops and that oneDNN calls, in place of
// libgomp's, whose threads spin for a number of turns before they sleep: no number suits both an
// idle machine and a busy one.
//
// OMP_NUM_THREADS and OMP_WAIT_POLICY (team.cpp) are read. Nested regions have one thread. Other
// constructs than static loops and barriers need more functions, and libgomp's would not know these
// threads: openmp_test.cpp and tools/check_symbols.py look for them.
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include <sched.h>

#include "tokamak/cpu/team.h"

namespace tokamak::cpu {
namespace {

int threads_at_start() {
  static const int kThreads = [] {
    const char* const value = std::getenv("OMP_NUM_THREADS");
    const std::string_view text = value == nullptr ? "" : value;
    int n = 0;
    std::from_chars(text.data(), text.data() + text.size(), n);
    cpu_set_t cores;
    if (n <= 0 && ::sched_getaffinity(0, sizeof cores, &cores) == 0) n = CPU_COUNT(&cores);
    return n > 0 ? n : 1;
  }();
  return kThreads;
}

thread_local int max_threads = 0;  // 0: the number at the start

int threads_of_next() {
  return max_threads > 0 ? max_threads : threads_at_start();
}

thread_local std::unique_ptr<Team> own_team;

void run_region(void (*body)(void*), void* data, int threads) {
  if (place.team != nullptr) {
    const Place before = std::exchange(place, {place.team, 0, 1});
    body(data);
    place = before;
  } else if (threads <= 1) {
    body(data);
  } else {
    if (own_team == nullptr || own_team->size() < threads)
      own_team = std::make_unique<Team>(threads);
    own_team->run(body, data, threads);
  }
}

}  // namespace
}  // namespace tokamak::cpu

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the names are libgomp's

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned /*flags*/) {
  using namespace tokamak::cpu;  // NOLINT(google-build-using-namespace): C's functions lie outside
  run_region(body, data, threads == 0 ? threads_of_next() : static_cast<int>(threads));
}

void GOMP_barrier() {
  const tokamak::cpu::Place& here = tokamak::cpu::place;
  if (here.threads > 1) here.team->meet();
}

int omp_get_max_threads() {
  return tokamak::cpu::threads_of_next();
}

int omp_get_num_threads() {
  return tokamak::cpu::place.threads;
}

int omp_get_thread_num() {
  return tokamak::cpu::place.thread;
}

int omp_in_parallel() {
  return tokamak::cpu::place.team != nullptr ? 1 : 0;
}

void omp_set_num_threads(int threads) {
  tokamak::cpu::max_threads = threads;
}

// NOLINTEND(readability-identifier-naming)
}  // extern "C"
