#include "tokamak/train/step_agreement.h"

#include <string>

#include <fmt/format.h>

namespace tokamak {

StepAgreement agree_on_step(World& world, const StepAgreement& mine) {
  if (world.size() == 1) return mine;
  StepAgreement all = mine;
  const auto texts = world.all_gather_text(
      fmt::format("{}{}{} {}", mine.can_advance ? 'w' : '-', mine.is_retry_due ? 'r' : '-',
                  mine.is_save_asked ? 's' : '-', mine.signal));
  for (const std::string& text : texts) {
    if (all.signal == 0) all.signal = std::stoi(text.substr(4));
    all.is_save_asked = all.is_save_asked || text[2] == 's';
    all.can_advance = all.can_advance && text[0] == 'w';
  }
  all.is_retry_due = texts[0][1] == 'r';
  return all;
}

}  // namespace tokamak
