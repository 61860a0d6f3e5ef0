#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/data/loader.h"

namespace tokamak {

std::string LoaderState::to_json() const {
  OrderedJson json;
  json["window"] = window;
  json["seq_len"] = seq_len;
  json["shuffle_seed"] = nullptr;
  if (shuffle_seed) json["shuffle_seed"] = std::to_string(*shuffle_seed);
  json["sources"] = OrderedJson::array();
  for (const Source& source : sources) {
    json["sources"].push_back({{"name", source.name},
                               {"hash", fmt::format("{:016x}", source.hash)},
                               {"epoch", source.epoch}});
  }
  return json.dump();
}

namespace {

uint64_t parse_u64(const std::string& digits, int base, std::string_view name) {
  size_t used = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(digits, &used, base);
  } catch (const std::logic_error&) {
    used = 0;
  }
  TOK_REQUIRE(used > 0 && used == digits.size(), "{}: wanted a number of base {}, got \"{}\"", name,
              base, digits);
  return value;
}

}  // namespace

LoaderState LoaderState::from_json(std::string_view text, std::string_view name) {
  const Json json = parse_json(text, name);
  LoaderState state;
  state.window = json_member<int64_t>(json, "window", name);
  TOK_REQUIRE(state.window >= 0, "{}: \"window\": wanted 0 or more, got {}", name, state.window);
  state.seq_len = json_member<int64_t>(json, "seq_len", name);
  constexpr int64_t kMostTokens = int64_t{1} << 60;
  TOK_REQUIRE(state.seq_len >= 1 && state.seq_len < kMostTokens &&
                  state.window <= kMostTokens / (state.seq_len + 1),
              "{}: wanted at most {} tokens before the next window, got {} windows of seq_len {}",
              name, kMostTokens, state.window, state.seq_len);
  const auto seed = json_member_or<std::string>(json, "shuffle_seed", "", name);
  if (!seed.empty()) state.shuffle_seed = parse_u64(seed, 10, name);
  TOK_REQUIRE(json.contains("sources") && json["sources"].is_array(),
              "{}: \"sources\": wanted a list", name);
  for (const Json& source : json["sources"]) {
    state.sources.push_back(
        {.name = json_member<std::string>(source, "name", name),
         .hash = parse_u64(json_member<std::string>(source, "hash", name), 16, name),
         .epoch = json_member<int64_t>(source, "epoch", name)});
  }
  return state;
}

}  // namespace tokamak
