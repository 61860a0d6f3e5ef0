#include "tokamak/pipeline/schedule_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr std::string_view kPair = "OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\"\xEF\xBB\xBF";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// Takes a number off the front of `text`; returns nothing for one larger than any pipeline has.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || number < 0 || number > 1'000'000) return std::nullopt;
  text.remove_prefix(end - text.data());
  return number;
}

bool is_communication(std::string_view kind) {
  constexpr std::array<std::string_view, 7> kKinds = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                      "UNSHARD", "RESHARD", "REDUCE_GRAD"};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

std::optional<PipelineOp> op_of(std::string_view kind) {
  constexpr std::string_view kOps = "FBIW";  // in the order of PipelineOp
  const size_t at = kind.size() == 1 ? kOps.find(kind) : std::string_view::npos;
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<PipelineOp>(at);
}

class Reader {
 public:
  explicit Reader(const std::string& name) { schedule_.name = name; }

  PipelineSchedule read(std::string_view text) {
    std::vector<std::string_view> rows = split(text, '\n');
    while (!rows.empty() && trimmed(rows.back()).empty()) rows.pop_back();
    TOK_REQUIRE(!rows.empty(), "{}: wanted a row of actions for each pipeline rank, got none",
                schedule_.name);
    for (const std::string_view row : rows) {
      ++row_;
      column_ = 0;
      schedule_.actions.emplace_back();
      for (const std::string_view cell : split(row, ',')) {
        ++column_;
        read_cell(trimmed(cell));
      }
    }
    schedule_.num_ranks = static_cast<int>(rows.size());
    place_stages();
    split_old_backwards();
    check_schedule(schedule_);
    return std::move(schedule_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: row {}, cell {}: {}", schedule_.name, row_, column_,
         fmt::format(text, std::forward<Args>(args)...));
  }

  void read_cell(std::string_view cell) {
    if (cell.empty()) return;
    if (cell.front() != '(') return add(cell, false);
    const size_t close = cell.find(')');
    const auto parts =
        split(cell.substr(1, close == std::string_view::npos ? close : close - 1), ';');
    if (close == std::string_view::npos || trimmed(cell.substr(close + 1)) != kPair ||
        parts.size() != 2) {
      fail_here("wanted a pair like (0F3;3B1)OVERLAP_F_B, got {}", cell);
    }
    add(trimmed(parts[0]), false);
    add(trimmed(parts[1]), true);
  }

  void add(std::string_view text, bool overlaps_previous) {
    std::string_view rest = text;
    const auto stage = take_number(rest);
    const size_t letters = std::min(rest.find_first_of("0123456789"), rest.size());
    const std::string_view kind = rest.substr(0, letters);
    rest.remove_prefix(letters);
    if (stage && is_communication(kind)) return;
    const auto op = op_of(kind);
    const auto microbatch = take_number(rest);
    if (!stage || !op || !microbatch || !rest.empty()) {
      fail_here("wanted STAGE, one of F, B, I, W, MICROBATCH (like 2F0), got {}", text);
    }
    place(*stage);
    num_actions_ += 1;
    schedule_.num_microbatches = std::max(schedule_.num_microbatches, *microbatch + 1);
    schedule_.actions.back().push_back({*op, *stage, *microbatch, overlaps_previous});
  }

  void place(int stage) {
    if (static_cast<size_t>(stage) >= rank_of_stage_.size()) rank_of_stage_.resize(stage + 1, -1);
    int& rank = rank_of_stage_[stage];
    if (rank >= 0 && rank != row_ - 1)
      fail_here("stage {} is in row {}; a stage has one rank", stage, rank + 1);
    rank = row_ - 1;
  }

  void place_stages() {
    for (size_t stage = 0; stage < rank_of_stage_.size(); ++stage) {
      TOK_REQUIRE(rank_of_stage_[stage] >= 0, "{}: no row has stage {}; there is a stage {}",
                  schedule_.name, stage, rank_of_stage_.size() - 1);
    }
    schedule_.rank_of_stage = std::move(rank_of_stage_);
    // Every stage runs each microbatch at least twice; a stray number must not ask for memory.
    const size_t least = 2 * schedule_.rank_of_stage.size() * schedule_.num_microbatches;
    TOK_REQUIRE(num_actions_ >= least,
                "{}: wanted at least {} actions (forward and backward, stages up to {}, "
                "microbatches up to {}), got {}",
                schedule_.name, least, schedule_.num_stages() - 1, schedule_.num_microbatches - 1,
                num_actions_);
  }

  void split_old_backwards() {
    for (auto& list : schedule_.actions) {
      std::set<std::pair<int, int>> weights;
      for (const PipelineAction& a : list) {
        if (a.op == PipelineOp::kBackwardWeight) weights.emplace(a.stage, a.microbatch);
      }
      for (PipelineAction& a : list) {
        if (a.op == PipelineOp::kBackward && weights.count({a.stage, a.microbatch}) != 0)
          a.op = PipelineOp::kBackwardInput;
      }
    }
  }

  PipelineSchedule schedule_;
  std::vector<int> rank_of_stage_;
  size_t num_actions_ = 0;
  int row_ = 0;  // from 1
  int column_ = 0;
};

}  // namespace

PipelineSchedule parse_schedule_csv(std::string_view text, const std::string& name) {
  return Reader(name).read(text);
}

}  // namespace tokamak
