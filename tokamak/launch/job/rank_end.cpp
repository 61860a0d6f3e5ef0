#include "tokamak/launch/job/rank_end.h"

#include <sstream>

#include <fmt/format.h>

#include "tokamak/core/file.h"

namespace tokamak::launch {
namespace {

// No text of a rank begins so: the first character is ASCII's record separator.
constexpr std::string_view kMark = "\x1etokamak-rank ";
constexpr std::string_view kNone = "-";

std::filesystem::path end_path(const std::filesystem::path& folder, int64_t rank) {
  return folder / fmt::format("end-{}", rank);
}

std::string_view name_of(RankNews::Kind kind) {
  switch (kind) {
    case RankNews::Kind::kBegan:
      return "began";
    case RankNews::Kind::kAlive:
      return "alive";
    case RankNews::Kind::kEnded:
      return "ended";
  }
  return "";
}

}  // namespace

std::string to_line(const RankNews& news) {
  const RankEnd& end = news.end;
  return fmt::format("{}{} {} {} {} {} {} {} {} {} {}\n", kMark, name_of(news.kind), news.rank,
                     end.exit_code, end.was_told ? 1 : 0, end.at_ns, end.step, end.process,
                     end.host, end.leave_out.empty() ? kNone : end.leave_out, end.reason);
}

std::optional<RankNews> news_in(std::string_view line) {
  if (line.substr(0, kMark.size()) != kMark) return std::nullopt;
  std::istringstream words{std::string(line.substr(kMark.size()))};
  RankNews news;
  RankEnd& end = news.end;
  std::string kind;
  words >> kind >> news.rank >> end.exit_code >> end.was_told >> end.at_ns >> end.step >>
      end.process >> end.host >> end.leave_out;
  if (!words) return std::nullopt;
  if (end.leave_out == kNone) end.leave_out.clear();
  std::getline(words >> std::ws, end.reason);
  for (const auto each : {RankNews::Kind::kBegan, RankNews::Kind::kAlive, RankNews::Kind::kEnded}) {
    if (kind != name_of(each)) continue;
    news.kind = each;
    return news;
  }
  return std::nullopt;
}

void write_rank_end(const std::filesystem::path& folder, int64_t rank, const RankEnd& end) {
  const auto path = end_path(folder, rank);
  auto aside = path;
  aside += ".new";
  std::error_code code;
  try {
    FileWriter(aside).write(to_line({.kind = RankNews::Kind::kEnded, .rank = rank, .end = end}));
    std::filesystem::rename(aside, path, code);
  } catch (const std::exception&) {
    std::filesystem::remove(aside, code);
  }
}

std::optional<RankEnd> read_rank_end(const std::filesystem::path& folder, int64_t rank) {
  const auto path = end_path(folder, rank);
  if (!path_exists(path)) return std::nullopt;
  const auto news = news_in(read_file(path));
  return news ? std::optional(news->end) : std::nullopt;
}

}  // namespace tokamak::launch
