#include "tokamak/price/machine/units.h"

#include <cmath>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak::price {

namespace {

struct Unit {
  Dimension dimension;
  std::string_view name;
  double si;
};

// Units of one dimension go from small to large: text_of takes the largest that leaves 1 or more.
constexpr Unit kUnits[] = {
    {Dimension::kNone, "1", 1.0},
    {Dimension::kNone, "%", 1e-2},
    {Dimension::kFlopsPerSecond, "FLOP/s", 1.0},
    {Dimension::kFlopsPerSecond, "GFLOP/s", 1e9},
    {Dimension::kFlopsPerSecond, "TFLOP/s", 1e12},
    {Dimension::kFlopsPerSecond, "PFLOP/s", 1e15},
    {Dimension::kBytesPerSecond, "B/s", 1.0},
    {Dimension::kBytesPerSecond, "MB/s", 1e6},
    {Dimension::kBytesPerSecond, "GB/s", 1e9},
    {Dimension::kBytesPerSecond, "TB/s", 1e12},
    {Dimension::kBytes, "B", 1.0},
    {Dimension::kBytes, "kB", 1e3},
    {Dimension::kBytes, "KiB", 1024.0},
    {Dimension::kBytes, "MB", 1e6},
    {Dimension::kBytes, "MiB", 1024.0 * 1024.0},
    {Dimension::kBytes, "GB", 1e9},
    {Dimension::kBytes, "GiB", 1024.0 * 1024.0 * 1024.0},
    {Dimension::kBytes, "TB", 1e12},
    {Dimension::kSeconds, "ns", 1e-9},
    {Dimension::kSeconds, "us", 1e-6},
    {Dimension::kSeconds, "ms", 1e-3},
    {Dimension::kSeconds, "s", 1.0},
    {Dimension::kSeconds, "min", 60.0},
    {Dimension::kSeconds, "h", 3600.0},
    {Dimension::kSeconds, "d", 86400.0},
    {Dimension::kSecondsPerRootMib, "us/sqrt(MiB)", 1e-6},
    {Dimension::kSecondsPerRootMib, "s/sqrt(MiB)", 1.0},
    {Dimension::kPerSecond, "1/year", 1.0 / (365.0 * 86400.0)},
    {Dimension::kPerSecond, "1/day", 1.0 / 86400.0},
    {Dimension::kPerSecond, "1/h", 1.0 / 3600.0},
    {Dimension::kPerSecond, "1/s", 1.0},
};

// Whether text_of never writes the unit.
bool is_only_read(std::string_view unit) {
  return unit == "%" || unit == "kB" || unit.find("iB") == 1 || unit == "min" || unit == "h" ||
         unit == "d" || unit == "s/sqrt(MiB)" || unit == "1/year";
}

std::string names_of(Dimension dimension) {
  std::string out;
  for (const Unit& unit : kUnits) {
    if (unit.dimension == dimension) out += fmt::format("{}{}", out.empty() ? "" : ", ", unit.name);
  }
  return out;
}

}  // namespace

double si_per_unit(Dimension dimension, std::string_view unit, std::string_view who) {
  if (unit.empty() && dimension == Dimension::kNone) return 1.0;
  TOK_REQUIRE(!unit.empty(), "{}: no unit: wanted one of {}", who, names_of(dimension));
  for (const Unit& known : kUnits) {
    if (known.dimension == dimension && known.name == unit) return known.si;
  }
  fail("{}: unit \"{}\": wanted one of {}", who, printable(unit), names_of(dimension));
}

std::string text_of(double in_si, Dimension dimension) {
  const Unit* best = nullptr;
  for (const Unit& unit : kUnits) {
    if (unit.dimension != dimension || is_only_read(unit.name)) continue;
    if (best == nullptr || std::abs(in_si) >= unit.si) best = &unit;
  }
  const std::string number = fmt::format("{:.10g}", in_si / best->si);
  return dimension == Dimension::kNone ? number : fmt::format("{} {}", number, best->name);
}

}  // namespace tokamak::price
