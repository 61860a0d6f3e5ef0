#include "tokamak/train/report/start_phases.h"

#include <algorithm>

#include <fmt/format.h>

namespace tokamak {

StartPhases::Phase& StartPhases::phase_of(const std::string& name) {
  const auto phase =
      std::ranges::find_if(phases_, [&](const Phase& each) { return each.name == name; });
  return phase != phases_.end() ? *phase : phases_.emplace_back(Phase{.name = name});
}

void StartPhases::end(const std::string& name, Clock::time_point at) {
  phase_of(name).seconds += std::chrono::duration<double>(at - last_).count();
  last_ = at;
}

void StartPhases::take_out(const std::string& phase, const std::string& part, double seconds) {
  phase_of(phase).seconds -= seconds;
  phase_of(part).seconds += seconds;
}

std::string StartPhases::line() const {
  constexpr double kLeast = 0.05;
  std::string text =
      fmt::format("Started in {:.1f} s", std::chrono::duration<double>(last_ - begin_).count());
  const char* before = ": ";
  for (const Phase& phase : phases_) {
    if (phase.seconds < kLeast) continue;
    text += fmt::format("{}{} {:.1f}", before, phase.name, phase.seconds);
    before = ", ";
  }
  return text;
}

}  // namespace tokamak
