#include "tokamak/train/report/log_line.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "tokamak/core/names.h"

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

/// A field of a line. If the line is too wide, the highest rank is left out first.
struct Field {
  std::string_view color;
  std::string text;
  int rank = 0;
  bool is_joined = false;  ///< to the field before it
};

void add_memory(std::optional<double> gib, std::optional<double> percent, std::string_view color,
                std::vector<Field>& fields) {
  fields.push_back({color, gib ? fmt::format("memory: {:5.2f}GiB", *gib) : "memory: N/A", 4});
  if (gib && percent) fields.push_back({"", fmt::format("({:.2f}%)", *percent), 6, true});
}

std::string joined(std::vector<Field> fields, std::string_view reset, int columns) {
  const auto width = [&] {
    size_t all = 0;
    for (const Field& f : fields) all += f.text.size() + (f.is_joined || all == 0 ? 0 : 2);
    return static_cast<int>(all);
  };
  const auto is_less = [](const Field& a, const Field& b) { return a.rank <= b.rank; };
  while (columns > 0 && width() > columns) fields.erase(std::ranges::max_element(fields, is_less));
  std::string line;
  for (const Field& f : fields)
    line += fmt::format("{}{}{}", f.is_joined || line.empty() ? "" : "  ", f.color, f.text);
  return line + std::string(reset);
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

  const double done = static_cast<double>(p.step) / static_cast<double>(p.num_steps);
  std::vector<Field> fields{{c.red, fmt::format("step {}/{}", p.step, p.num_steps), 1},
                            {c.red, fmt::format("{:.0f}%", std::floor(100.0 * done)), 2},
                            {c.green, fmt::format("loss {:.4f}", p.loss), 3},
                            {c.blue, rate_text(p.tps, 0) + " tok/s", 4}};
  if (p.seconds_left) fields.push_back({c.yellow, duration_text(*p.seconds_left) + " left", 5});
  fields.push_back({c.turquoise, fmt::format("{:.2f} GiB", p.memory_gib), 6});
  return joined(std::move(fields), c.reset, columns);
}

std::string step_line(const StepMetrics& m, LogColor color, int columns) {
  const Palette& c = palette_of(color);
  std::vector<Field> fields{{c.red, fmt::format("step: {:2}", m.step)},
                            {c.green, fmt::format("loss: {:8.5f}", m.loss)},
                            {c.orange, fmt::format("grad_norm: {:7.4f}", m.grad_norm), 1}};
  add_memory(m.memory_gib, m.memory_percent, c.turquoise, fields);
  fields.push_back({c.blue, fmt::format("tps: {}", rate_text(m.tps, 0)), 3});
  fields.push_back({c.cyan, fmt::format("tflops: {}", rate_text(m.tflops, 2)), 5});
  fields.push_back({c.magenta, fmt::format("mfu: {}", percent_text(m.mfu)), m.mfu ? 2 : 7});
  const auto add_seconds = [&](const char* name, std::optional<double> seconds, int rank) {
    constexpr double kLeastShare = 0.01;
    constexpr double kLeastShown = 0.0005;
    if (seconds && *seconds >= kLeastShown && *seconds >= kLeastShare * m.step_time_s.value_or(0.0))
      fields.push_back({c.reset, fmt::format("{}: {:.3f}s", name, *seconds), rank});
  };
  add_seconds("data", m.seconds.data, 8);
  add_seconds("exposed_comm", m.seconds.exposed_comm, 9);
  return joined(std::move(fields), c.reset, columns);
}

std::string validation_line(const ValidationMetrics& m, LogColor color, int columns) {
  const Palette& c = palette_of(color);
  std::vector<Field> fields{{c.yellow, fmt::format("validate step: {:2}", m.step)},
                            {c.green, fmt::format("loss: {:7.4f}", m.loss)}};
  add_memory(m.memory_gib, m.memory_percent, c.turquoise, fields);
  fields.push_back({c.blue, fmt::format("tps: {}", rate_text(m.tps, 0)), 3});
  return joined(std::move(fields), c.reset, columns);
}

}  // namespace tokamak
