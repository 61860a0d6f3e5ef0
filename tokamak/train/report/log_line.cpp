#include "tokamak/train/report/log_line.h"

#include <cmath>
#include <ctime>
#include <optional>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "tokamak/core/with_commas.h"

namespace tokamak {
namespace {

struct Palette {
  std::string_view red, green, orange, turquoise, blue, cyan, magenta, yellow, reset;
};

constexpr Palette kPlainPalette{};
constexpr Palette kAnsiPalette{.red = "\033[31m",
                               .green = "\033[32m",
                               .orange = "\033[38;2;180;60;0m",
                               .turquoise = "\033[38;2;54;234;195m",
                               .blue = "\033[34m",
                               .cyan = "\033[36m",
                               .magenta = "\033[35m",
                               .yellow = "\033[33m",
                               .reset = "\033[39m"};

const Palette& palette_of(LogColor color) {
  return color == LogColor::kAnsi ? kAnsiPalette : kPlainPalette;
}

std::string memory_text(std::optional<double> gib, std::optional<double> percent) {
  if (!gib) return "N/A";
  if (!percent) return fmt::format("{:5.2f}GiB", *gib);
  return fmt::format("{:5.2f}GiB({:.2f}%)", *gib, *percent);
}

std::string rate_text(std::optional<double> rate, int digits) {
  if (!rate) return "N/A";
  return with_commas(fmt::format("{:.{}f}", digits == 0 ? std::nearbyint(*rate) : *rate, digits));
}

std::string percent_text(std::optional<double> percent) {
  return percent ? fmt::format("{:.2f}%", *percent) : "N/A";
}

std::string duration_text(double seconds) {
  const auto s = int64_t{std::lround(seconds)};
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

std::string added_fields(const StepMetrics& m) {
  std::string text;
  if (m.mfu_causal) text += fmt::format("  mfu_causal: {}", percent_text(m.mfu_causal));
  if (m.seconds.data) text += fmt::format("  data: {:.3f}s", *m.seconds.data);
  if (m.seconds.exposed_comm) {
    text += fmt::format("  exposed_comm: {:.3f}s", *m.seconds.exposed_comm);
  }
  return text;
}

}  // namespace

std::string log_prefix(std::chrono::system_clock::time_point now, std::string_view level,
                       LogFormat format, LogColor color) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - whole).count();
  const std::tm local = fmt::localtime(std::chrono::system_clock::to_time_t(whole));
  if (format == LogFormat::kTorchtitan)
    return fmt::format("[titan] {:%Y-%m-%d %H:%M:%S},{:03} - root - {} - ", local, ms, level);
  const std::string warning = level == "INFO" ? "" : fmt::format("{}: ", level);
  if (color == LogColor::kPlain) return fmt::format("{:%Y-%m-%d %H:%M:%S} {}", local, warning);
  return fmt::format("\033[2m{:%Y-%m-%d %H:%M:%S}\033[22m {}{}{}", local, kAnsiPalette.yellow,
                     warning, kAnsiPalette.reset);
}

std::string progress_line(const StepProgress& p, LogColor color, int columns) {
  const Palette& c = palette_of(color);

  struct Field {
    std::string_view color;
    std::string text;
  };

  std::vector<Field> fields{
      {c.red, fmt::format("step {}/{}", p.step, p.num_steps)},
      {c.red, fmt::format("{:.0f}%", std::floor(100.0 * static_cast<double>(p.step) /
                                                static_cast<double>(p.num_steps)))},
      {c.green, fmt::format("loss {:.4f}", p.loss)},
      {c.blue, rate_text(p.tps, 0) + " tok/s"}};
  if (p.seconds_left) fields.push_back({c.yellow, duration_text(*p.seconds_left) + " left"});
  fields.push_back({c.turquoise, fmt::format("{:.2f} GiB", p.memory_gib)});
  std::string line;
  int used = 0;
  for (const Field& field : fields) {
    const int width = static_cast<int>(field.text.size()) + (line.empty() ? 0 : 2);
    if (used + width > columns) break;
    line += fmt::format("{}{}{}", used == 0 ? "" : "  ", field.color, field.text);
    used += width;
  }
  return line + std::string(c.reset);
}

std::string step_line(const StepMetrics& m, LogColor color) {
  const Palette& c = palette_of(color);
  return fmt::format(
      "{}step: {:2}  {}loss: {:8.5f}  {}grad_norm: {:7.4f}  {}memory: {}  {}tps: {}  {}tflops: {}  "
      "{}mfu: {}{}{}",
      c.red, m.step, c.green, m.loss, c.orange, m.grad_norm, c.turquoise,
      memory_text(m.memory_gib, m.memory_percent), c.blue, rate_text(m.tps, 0), c.cyan,
      rate_text(m.tflops, 2), c.magenta, percent_text(m.mfu), c.reset, added_fields(m));
}

std::string validation_line(const ValidationMetrics& m, LogColor color) {
  const Palette& c = palette_of(color);
  return fmt::format("{}validate step: {:2}  {}loss: {:7.4f}  {}memory: {}  {}tps: {}{}", c.yellow,
                     m.step, c.green, m.loss, c.turquoise,
                     memory_text(m.memory_gib, m.memory_percent), c.blue, rate_text(m.tps, 0),
                     c.reset);
}

}  // namespace tokamak
