#include "tokamak/train/run_tokens.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/comm/flight.h"
#include "tokamak/core/names.h"
#include "tokamak/data/cache/token_cache.h"
#include "tokamak/train/together.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

// Shows the progress of tokenization on rank 0: a bar on a terminal, else a line every few seconds.
class TokenizingLog {
 public:
  TokenizingLog(const TrainerOptions& options, World& world) : o_(options), world_(world) {}

  void operator()(const CacheProgress& p) {
    constexpr std::chrono::seconds kBetweenLines{5};
    if (std::exchange(progress_, p.progress) != p.progress) world_.flights().tick();
    if (world_.rank() != 0) return;
    if (is_live_) return draw(p);
    if (Clock::now() - last_ < kBetweenLines || !o_.logging.print) return;
    last_ = Clock::now();
    o_.logging.print("INFO", fmt::format("Tokenizing {}: {} tokens, {:.0f} %", p.source,
                                         with_commas(p.tokens), 100.0 * p.share));
  }

 private:
  void draw(const CacheProgress& p) {
    constexpr int kWidth = 30;
    // A cache that was there all along is no work.
    if (p.complete && !has_drawn_) return;
    has_drawn_ = true;
    const int done = static_cast<int>(p.share * kWidth);
    const std::string name = std::filesystem::path(p.source).filename().string();
    fmt::print(stderr, "\r\033[2KTokenizing {} [{:#<{}}{:.<{}}] {:3.0f} %, {} tokens{}", name, "",
               done, "", kWidth - done, 100.0 * p.share, with_commas(p.tokens),
               p.complete ? "\n" : "");
    if (p.complete) has_drawn_ = false;
  }

  const TrainerOptions& o_;
  World& world_;
  bool is_live_ = isatty(STDERR_FILENO) != 0;
  bool has_drawn_ = false;
  int64_t progress_ = -1;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

bool await_batch(Loader& loader, std::chrono::milliseconds most, FlightPage& page) {
  if (loader.wait(std::chrono::milliseconds(0))) return true;
  const int64_t made = loader.progress();
  if (loader.wait(most)) return true;
  if (loader.progress() != made) page.tick();
  return false;
}

TrainerOptions with_tokens(const TrainerOptions& given, World& world) {
  TrainerOptions o = given;
  all_together_for_long(world, [&] {
    TokenizingLog log(given, world);
    if (o.epochs) {
      const auto windows =
          static_cast<double>(count_windows(o.data, 0, [&](const CacheProgress& p) { log(p); }));
      o.steps = static_cast<int64_t>(
          std::ceil(*o.epochs * windows / static_cast<double>(o.data.global_batch_size)));
      if (o.schedule.total_steps == 0) o.schedule.total_steps = o.steps;
    } else if (o.data.shuffle_seed) {
      build_token_cache(
          o.data, 0, [&](const CacheProgress& p) { log(p); }, false, false);
    }
    return fmt::format("{}", o.steps);
  });
  if (o.epochs && world.rank() == 0 && o.logging.print)
    o.logging.print("INFO", fmt::format("training.epochs = {:g} are {} steps", *o.epochs, o.steps));
  return o;
}

}  // namespace tokamak
