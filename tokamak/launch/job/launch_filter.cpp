#include "tokamak/launch/job/launch_filter.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

namespace tokamak::launch {
namespace {

constexpr std::array<std::string_view, 5> kKnownBanners{
    "MPI_ABORT was invoked on rank", "a non-zero exit code. Per user-direction",
    "mpirun noticed that process rank", "mpirun has exited due to process rank",
    "mpirun detected that one or more processes exited with non-zero status"};
// show_help.c complains when ranks end while mpirun still collects their banners.
constexpr std::array<std::string_view, 4> kKnownLines{
    "/util/show_help.c at line ", " sent help message ",
    "Set MCA parameter \"orte_base_help_aggregate\"", "mpirun: Forwarding signal "};

bool has_any(const std::string& text, std::span<const std::string_view> parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

bool is_rule(const std::string& line) {
  return line.size() > 70 && line.find_first_not_of('-') == line.size() - 1;
}

/// Returns what a line of Tokamak says, without the rank that wrote it.
std::optional<std::string> statement(const std::string& line) {
  constexpr std::string_view kOurs = "tokamak: ";
  if (line.rfind(kOurs, 0) != 0) return std::nullopt;
  std::string what = line.substr(kOurs.size());
  const auto colon = what.find(": ");
  if (what.rfind("rank ", 0) == 0 && what.find(" on ") < colon && colon != std::string::npos) {
    what.erase(0, colon + 2);
  }
  return what;
}

}  // namespace

std::string LaunchFilter::pass(std::string_view text) {
  std::string out;
  for (const char c : text) {
    line_ += c;
    if (c != '\n') continue;
    out += pass_line(line_);
    line_.clear();
  }
  return out;
}

std::string LaunchFilter::finish() {
  std::string rest = banner_ + line_;
  banner_.clear();
  line_.clear();
  in_banner_ = false;
  return rest;
}

std::string LaunchFilter::pass_line(const std::string& line) {
  if (const auto news = news_in(line)) {
    if (take_news_) take_news_(*news);
    return "";
  }
  if (is_rule(line)) {
    banner_ += line;
    in_banner_ = !in_banner_;
    if (in_banner_) return "";
    const std::string banner = std::exchange(banner_, "");
    return has_any(banner, kKnownBanners) ? "" : banner;
  }
  if (in_banner_) {
    banner_ += line;
    return "";
  }
  if (has_any(line, kKnownLines)) return "";
  // An indented line belongs to the statement above.
  if (is_repeated_ && line.rfind("  ", 0) == 0) return "";
  const auto what = statement(line);
  is_repeated_ = what && !said_.insert(*what).second;
  return is_repeated_ ? "" : line;
}

}  // namespace tokamak::launch
