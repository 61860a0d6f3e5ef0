#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/bpe_tokenizer.h"
#include "tokamak/tokenizer/digest.h"

#include "sentencepiece.pb.h"

namespace tokamak {
namespace {

using sentencepiece::ModelProto;

enum PieceType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr int32_t kBpe = 2;
constexpr std::string_view kSpaceMark = "\u2581";

std::string_view type_name(int32_t model_type) {
  constexpr std::array<std::string_view, 5> kNames{"unknown", "unigram", "BPE", "word", "char"};
  return model_type > 0 && model_type < 5 ? kNames[model_type] : kNames[0];
}

ModelProto parse_proto(std::string_view bytes, std::string_view name) {
  constexpr size_t kMostBytes = size_t{1} << 30U;
  TOK_REQUIRE(bytes.size() < kMostBytes, "{}: {} bytes are too many for a SentencePiece model",
              name, bytes.size());
  ModelProto model;
  TOK_REQUIRE(
      model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) && model.pieces_size() > 0,
      "{}: is no SentencePiece model, or was cut off", name);
  const auto& trainer = model.trainer_spec();
  TOK_REQUIRE(trainer.model_type() == kBpe,
              "{}: is a SentencePiece model of type {}: only BPE is supported", name,
              type_name(trainer.model_type()));
  TOK_REQUIRE(!trainer.treat_whitespace_as_suffix(),
              "{}: treat_whitespace_as_suffix is not supported", name);
  const auto& normalizer = model.normalizer_spec();
  TOK_REQUIRE(normalizer.precompiled_charsmap().empty(),
              "{}: the normalization \"{}\" is not supported, only \"identity\"; convert the model "
              "to a tokenizer.json",
              name, normalizer.name());
  TOK_REQUIRE(normalizer.escape_whitespaces(), "{}: escape_whitespaces = false is not supported",
              name);
  return model;
}

// Adds a piece under its index as id.
void add_piece(const ModelProto& model, int32_t id, std::string_view name,
               BpeDefinition& definition) {
  Bpe& bpe = definition.bpe;
  const auto& piece = model.pieces(id);
  const std::string& text = piece.piece();
  TOK_REQUIRE(!text.empty(), "{}: piece {} is empty", name, id);
  bool is_new = false;
  switch (piece.type()) {
    case kNormal:
      is_new = bpe.vocabulary.add(text, id);
      break;
    case kUserDefined:
      is_new = bpe.vocabulary.add(text, id);
      definition.added_tokens.push_back({.content = text, .id = id, .normalized = true});
      break;
    case kUnknown:
      is_new = bpe.vocabulary.add_hidden(model.trainer_spec().unk_surface(), id);
      bpe.unknown = id;
      break;
    case kControl:
      is_new = bpe.vocabulary.add_hidden(text, id);
      break;
    case kByte: {
      const int byte = byte_of_token(text);
      TOK_REQUIRE(byte >= 0, "{}: piece {}: wanted a byte as <0x0A>, got \"{}\"", name, id, text);
      is_new = bpe.vocabulary.add_hidden(text, id);
      if (model.trainer_spec().byte_fallback()) bpe.fallback_ids[byte] = id;
      break;
    }
    default:
      fail("{}: piece {} has the type {}, which is not supported", name, id, piece.type());
  }
  TOK_REQUIRE(is_new, "{}: piece {} (\"{}\") is repeated", name, id, text);
}

// Returns each piece's rank: pieces of one score share one, and the leftmost is merged first.
std::vector<uint32_t> ranks_of(const ModelProto& model) {
  std::vector<float> scores;
  for (const auto& piece : model.pieces()) scores.push_back(piece.score());
  std::vector<float> order = scores;
  std::ranges::sort(order, std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<uint32_t> ranks;
  for (const float score : scores) {
    const auto at = std::lower_bound(order.begin(), order.end(), score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(at - order.begin()));
  }
  return ranks;
}

// Adds a merge for every two pieces whose concatenation is a piece.
void make_merges(const ModelProto& model, Bpe& bpe) {
  const auto is_normal = [&](int32_t id) { return id >= 0 && model.pieces(id).type() == kNormal; };
  const std::vector<uint32_t> ranks = ranks_of(model);
  bpe.merges.reserve(bpe.vocabulary.size() * 3);
  for (int32_t id = 0; id < model.pieces_size(); ++id) {
    if (!is_normal(id)) continue;
    const std::string_view text = model.pieces(id).piece();
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const int32_t left = bpe.vocabulary.find(text.substr(0, cut));
      const int32_t right = is_normal(left) ? bpe.vocabulary.find(text.substr(cut)) : -1;
      if (is_normal(right)) bpe.merges.set(left, right, {.rank = ranks[id], .id = id});
    }
  }
}

std::optional<int32_t> control_id(const ModelProto& model, int32_t id) {
  const bool is_there = id >= 0 && id < model.pieces_size() && model.pieces(id).type() == kControl;
  return is_there ? std::optional(id) : std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, std::string_view name) {
  const ModelProto model = parse_proto(bytes, name);
  BpeDefinition definition;
  definition.name = name;
  Bpe& bpe = definition.bpe;
  bpe.of_characters = true;
  bpe.fuse_unknown = true;
  bpe.fallback_ids.fill(-1);
  bpe.vocabulary.reserve(model.pieces_size(), bytes.size());
  for (int32_t id = 0; id < model.pieces_size(); ++id) {
    TOK_REQUIRE(std::isfinite(model.pieces(id).score()), "{}: the score of piece {} is {}", name,
                id, model.pieces(id).score());
    add_piece(model, id, name, definition);
  }
  bpe.find_byte_ids();
  make_merges(model, bpe);
  const auto& normalizer = model.normalizer_spec();
  if (normalizer.remove_extra_whitespaces()) definition.normalizer.add(SqueezeSpacesStep{});
  if (normalizer.add_dummy_prefix()) definition.normalizer.add(PrependStep{.prefix = " "});
  definition.normalizer.add(ReplaceStep{.from = " ", .to = std::string(kSpaceMark)});
  if (normalizer.remove_extra_whitespaces())
    definition.normalizer.add(TrimEndStep{.mark = std::string(kSpaceMark)});
  constexpr int64_t kAll = INT64_MAX;
  const int64_t strips = normalizer.remove_extra_whitespaces() ? kAll
                         : normalizer.add_dummy_prefix()       ? 1
                                                               : 0;
  definition.decoder = std::vector<DecoderStep>{
      ByteTokens{}, FuseTokens{}, StripTokens{.content = std::string(kSpaceMark), .start = strips},
      ReplaceInTokens{.from = std::string(kSpaceMark), .to = " "}};
  definition.bos = control_id(model, model.trainer_spec().bos_id());
  definition.eos = control_id(model, model.trainer_spec().eos_id());
  definition.hash = digest(bytes, 2);
  return make_bpe_tokenizer(std::move(definition));
}

}  // namespace tokamak
