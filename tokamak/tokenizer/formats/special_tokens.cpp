#include "tokamak/tokenizer/formats/special_tokens.h"

#include <span>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

constexpr std::string_view kBosNames[] = {"<|begin_of_text|>", "<s>"};
constexpr std::string_view kEosNames[] = {"<|end_of_text|>", "<|endoftext|>", "</s>"};

/// Sets `id` if the file has the key at all.
bool read_token(const Json& file, const std::string& key, std::string_view what,
                const std::function<int32_t(std::string_view)>& id_of, std::optional<int32_t>& id) {
  if (!file.is_object() || !file.contains(key)) return false;
  const Json& value = file.at(key);
  id.reset();
  if (value.is_null()) return true;
  const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
  TOK_REQUIRE(content.is_string(), "{}: {}: wanted a string or an object with content", what, key);
  const int32_t found = id_of(content.get_ref<const std::string&>());
  if (found >= 0) id = found;
  return true;
}

}  // namespace

DocumentEnds find_document_ends(const TokenizerSideFiles& side, std::string_view name,
                                const DocumentEnds& added_by_post_processor,
                                const std::function<int32_t(std::string_view)>& id_of) {
  const std::string config_name = fmt::format("tokenizer_config.json beside {}", name);
  const std::string map_name = fmt::format("special_tokens_map.json beside {}", name);
  const Json config = side.config.empty() ? Json() : parse_json(side.config, config_name);
  const Json map =
      side.special_tokens_map.empty() ? Json() : parse_json(side.special_tokens_map, map_name);
  const auto find = [&](const std::string& key, std::optional<int32_t> added,
                        std::span<const std::string_view> names) {
    std::optional<int32_t> id;
    if (read_token(config, key, config_name, id_of, id)) return id;
    if (read_token(map, key, map_name, id_of, id)) return id;
    if (added) return added;
    for (const std::string_view known : names) {
      if (const int32_t found = id_of(known); found >= 0) return std::optional(found);
    }
    return id;
  };
  return {.bos = find("bos_token", added_by_post_processor.bos, kBosNames),
          .eos = find("eos_token", added_by_post_processor.eos, kEosNames)};
}

}  // namespace tokamak
