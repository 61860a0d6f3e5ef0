// Steps that all ranks of a job take, or fail at, together: no rank continues after another failed.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/core/error.h"

namespace tokamak {

/// An error that every rank throws alike, also as Error, Diverged, SystemError or Bug, so that one
/// rank may report it for all.
class AgreedFailure {
 public:
  explicit AgreedFailure(ExitCode code) : code_(code) {}

  virtual ~AgreedFailure() = default;

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Work of a rank in a step that all take together: returns a text for the others, or nothing.
class RankWork {
 public:
  template <class F>
  RankWork(F work)  // NOLINT(google-explicit-constructor): calls pass lambdas
      : work_([work = std::move(work)]() -> std::string {
          if constexpr (std::is_void_v<std::invoke_result_t<const F&>>) {
            work();
            return "";
          } else {
            return work();
          }
        }) {}

  std::string operator()() const { return work_(); }

 private:
  std::function<std::string()> work_;
};

/// Prints the failure on rank 0, for all ranks; returns its exit code.
int report_once(const AgreedFailure& failure, const World& world);

/// Runs `work`, which throws on all ranks alike or on none. Its exception becomes an AgreedFailure.
void fail_together(const World& world, const std::function<void()>& work);

/// Runs `work` on every rank; returns every rank's text, by rank. If it throws on any rank, every
/// rank throws what the first such rank threw, of the same kind (Error, SystemError, Diverged,
/// Bug), with that rank's number before the text unless all ranks threw the same. Collective;
/// `work` itself is not.
std::vector<std::string> all_together(World& world, const RankWork& work);

/// Waits without a limit until `is_done`, which blocks for at most the given time, returns true on
/// all ranks. A rank that makes no progress is ended by its own watchdog. Collective.
void await_all(World& world, const std::function<bool(std::chrono::milliseconds)>& is_done);

/// Runs `work`, which is not collective, on every rank, while a thread of each tells the others
/// that it goes on: however long it takes, nobody gives up. What it throws is thrown once all have
/// ended. Collective.
void work_together(World& world, const std::function<void()>& work);

/// Does the same as all_together() with work that may take long on some ranks.
std::vector<std::string> all_together_for_long(World& world, const RankWork& work);

/// Runs `work` on rank 0 alone; returns its text, or throws its error, on every rank. Collective.
std::string on_rank_zero(World& world, const RankWork& work);

/// Does the same with work that may take long.
std::string on_rank_zero_for_long(World& world, const RankWork& work);

/// Returns rank 0's value on every rank. Collective.
double of_rank_zero(World& world, double value);

}  // namespace tokamak
