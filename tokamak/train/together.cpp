#include "tokamak/train/together.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <future>
#include <mutex>
#include <new>
#include <string_view>

#include "tokamak/comm/flight.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

// The first letter of what a rank tells the others.
constexpr char kFine = '+';
constexpr char kUser = 'U';
constexpr char kMachine = 'M';
constexpr char kFull = 'F';
constexpr char kDivergence = 'D';
constexpr char kBug = 'B';

std::string outcome_of(const RankWork& work) {
  try {
    return kFine + work();
  } catch (const Error& error) {
    return std::string(1, kUser) + error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    return std::string(1, is_machine_fault(error.code().value()) ? kMachine : kUser) + error.what();
  } catch (const DiskFull& error) {
    return kFull + std::string(error.what());
  } catch (const SystemError& error) {
    return std::string(1, kMachine) + error.what();
  } catch (const std::bad_alloc&) {
    return std::string(1, kMachine) + "out of host memory";
  } catch (const Diverged& error) {
    return std::string(1, kDivergence) + error.what();
  } catch (const std::exception& error) {
    return std::string(1, kBug) + error.what();
  }
}

template <class E>
class Agreed : public E, public AgreedFailure {
 public:
  Agreed(const std::string& text, ExitCode code) : E(text), AgreedFailure(code) {}
};

[[noreturn]] void throw_outcome(char kind, const std::string& text) {
  if (kind == kUser) throw Agreed<Error>(text, ExitCode::kUserError);
  if (kind == kFull) throw Agreed<DiskFull>(text, ExitCode::kTryAgain);
  if (kind == kMachine) throw Agreed<SystemError>(text, ExitCode::kTryAgain);
  if (kind == kDivergence) throw Agreed<Diverged>(text, ExitCode::kDiverged);
  throw Agreed<Bug>(text, ExitCode::kBug);
}

}  // namespace

int report_once(const AgreedFailure& failure, const World& world) {
  if (world.rank() == 0) {
    std::fflush(stdout);
    const auto* error = dynamic_cast<const std::exception*>(&failure);
    fmt::print(stderr, "tokamak: {}{}\n", failure.code() == ExitCode::kTryAgain ? "machine: " : "",
               error == nullptr ? "" : without_controls(error->what(), "\n\t"));
  }
  return static_cast<int>(failure.code());
}

void fail_together(const World& world, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  const std::string outcome = outcome_of(work);
  if (outcome[0] != kFine) throw_outcome(outcome[0], outcome.substr(1));
}

namespace {

// Returns what all ranks have said of their work, or throws for all.
std::vector<std::string> shared_outcomes(World& world, const std::string& mine) {
  std::vector<std::string> outcomes = world.all_gather_text(mine);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const char kind = outcomes[rank].at(0);
    if (kind == kFine) continue;
    const bool all_alike = std::ranges::count(outcomes, outcomes[rank]) == std::ssize(outcomes);
    throw_outcome(kind, fmt::format("{}{}", all_alike ? "" : fmt::format("rank {}: ", rank),
                                    outcomes[rank].substr(1)));
  }
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

// Returns what rank 0 has said of its work, or throws on all ranks.
std::string outcome_of_rank_zero(World& world, const std::string& mine) {
  const std::string outcome = world.broadcast_text(mine, 0);
  if (outcome.at(0) != kFine) throw_outcome(outcome[0], outcome.substr(1));
  return outcome.substr(1);
}

}  // namespace

std::vector<std::string> all_together(World& world, const RankWork& work) {
  if (world.size() == 1) return {work()};
  return shared_outcomes(world, outcome_of(work));
}

void await_all(World& world, const std::function<bool(std::chrono::milliseconds)>& is_done) {
  constexpr std::chrono::milliseconds kBetween{500};
  for (;;) {
    const bool is_here = is_done(kBetween);
    if (is_here) world.flights().tick();
    const auto all = world.all_gather_text(is_here ? "+" : "-");
    if (std::ranges::find(all, "-") == all.end()) return;
  }
}

void work_together(World& world, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false;
  world.flights().is_awaited = true;
  auto telling = std::async(std::launch::async, [&] {
    await_all(world, [&](std::chrono::milliseconds most) {
      std::unique_lock lock(mutex);
      return ended.wait_for(lock, most, [&] { return has_ended; });
    });
  });
  std::exception_ptr thrown;
  try {
    work();
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    has_ended = true;
  }
  ended.notify_all();
  telling.wait();
  world.flights().is_awaited = false;
  telling.get();
  if (thrown) std::rethrow_exception(thrown);
}

std::vector<std::string> all_together_for_long(World& world, const RankWork& work) {
  if (world.size() == 1) return {work()};
  std::string mine;
  work_together(world, [&] { mine = outcome_of(work); });
  return shared_outcomes(world, mine);
}

std::string on_rank_zero(World& world, const RankWork& work) {
  if (world.size() == 1) return work();
  return outcome_of_rank_zero(world, world.rank() == 0 ? outcome_of(work) : std::string());
}

std::string on_rank_zero_for_long(World& world, const RankWork& work) {
  if (world.size() == 1) return work();
  std::string mine;
  work_together(world, [&] {
    if (world.rank() == 0) mine = outcome_of(work);
  });
  return outcome_of_rank_zero(world, mine);
}

double of_rank_zero(World& world, double value) {
  return std::stod(world.broadcast_text(fmt::format("{:a}", value), 0));
}

}  // namespace tokamak
