// One rank of an MPI job for whole-system tests: comm_worker CASE [ARGUMENT]. Rank 1 is the one
// that does what the case says; the others wait for it.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/comm/world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

#include "tests/comm_battery.h"

namespace tokamak {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

std::unique_ptr<Communicator> make_all(World& world, const std::string& name) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group(name, ranks);
}

void battery(World& world) {
  const auto texts = world.all_gather_text(run_battery(world));
  if (world.rank() != 0) return;
  for (const std::string& text : texts) fmt::print("{}", text);
}

/// Steps of one all-reduce until any rank has got SIGTERM, which all then know. Rank 0 makes the
/// file `started` before the first.
void steps(World& world, const std::string& started) {
  std::signal(SIGTERM, [](int) { stop_asked = 1; });
  const auto dp = make_all(world, "dp");
  world.barrier();
  if (world.rank() == 0) FileWriter(started).write(std::string_view("yes"));
  int32_t stop = 0;
  while (stop == 0) {
    stop = stop_asked;
    dp->all_reduce(&stop, &stop, 1, DType::kI32, ReduceOp::kMax, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  fmt::print("rank {} saved\n", world.rank());
}

/// More than 2 GiB in one message.
void large(World& world) {
  const auto comm = make_all(world, "large");
  const int64_t bytes = (int64_t{1} << 31) + 4097;
  const int rank = world.rank();
  std::vector<uint8_t> data(static_cast<size_t>(bytes), static_cast<uint8_t>(7 + rank));
  data.back() = static_cast<uint8_t>(100 + rank);
  comm->broadcast(data.data(), bytes, DType::kU8, 1, nullptr);
  const bool is_right =
      data.front() == 8 && data[static_cast<size_t>(bytes / 2)] == 8 && data.back() == 101;
  fmt::print("rank {} {}\n", rank, is_right ? "right" : "wrong");
}

void differ(World& world) {
  const auto tp = make_all(world, "tp");
  std::vector<float> x(64);
  if (world.rank() == 1) {
    tp->all_gather(x.data(), x.data(), 4, DType::kF32, nullptr);
  } else {
    tp->all_reduce(x.data(), x.data(), 8, DType::kF32, ReduceOp::kSum, nullptr);
  }
}

/// All ranks meet, then rank 1 misses the second meeting.
void miss(World& world, const std::string& how) {
  const auto tp = make_all(world, "tp");
  float x = 1;
  tp->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, nullptr);
  if (world.rank() == 1) {
    if (how == "kill") std::raise(SIGKILL);
    if (how == "throw") fail("rank 1 does not like its folder");
    if (how == "diverge") throw Diverged("loss is NaN");
    if (how == "quit") _exit(0);
    if (how == "return") return;
    if (how == "abort") world.abort(3, "stopped");
    if (how == "hang") {
      while (true) pause();
    }
  }
  tp->all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum, nullptr);
}

/// Rank 1 dies unless the file `died` is there, which it makes.
void once(World& world, const std::string& died) {
  if (world.rank() == 1 && !path_exists(died)) {
    FileWriter(died).write(std::string_view("yes"));
    std::raise(SIGKILL);
  }
  world.barrier();
}

void run(const std::string& name, const std::string& argument) {
  if (name == "die") std::raise(SIGKILL);
  if (name == "early") fail("the config is wrong");
  const auto environment = read_launch_environment();
  if (name == "environment") {
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    fmt::print("{} threads {}\n", to_string(environment), threads == nullptr ? "?" : threads);
    return;
  }
  const std::chrono::milliseconds timeout(name == "miss" && argument == "hang" ? 1000 : 60'000);
  const auto world = make_world(environment, {.timeout = timeout});
  if (name == "battery") battery(*world);
  if (name == "steps") steps(*world, argument);
  if (name == "once") once(*world, argument);
  if (name == "large") large(*world);
  if (name == "differ") differ(*world);
  if (name == "miss") miss(*world, argument);
}

int report(ExitCode code, const char* text) {
  fmt::print(stderr, "tokamak: {}\n", text);
  abort_ranks(static_cast<int>(code));
  return static_cast<int>(code);
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  using namespace tokamak;  // NOLINT(google-build-using-namespace): main lies outside
  try {
    run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 0;
  } catch (const Error& error) {
    return report(ExitCode::kUserError, error.what());
  } catch (const Diverged& error) {
    return report(ExitCode::kDiverged, error.what());
  } catch (const SystemError& error) {
    return report(ExitCode::kTryAgain, error.what());
  } catch (const std::exception& error) {
    return report(ExitCode::kBug, error.what());
  }
}
