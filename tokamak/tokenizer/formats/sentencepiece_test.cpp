#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/tokenizer.h"

#include "sentencepiece.pb.h"

namespace tokamak {
namespace {

using Ids = std::vector<int32_t>;
using sentencepiece::ModelProto;

void add_piece(ModelProto& model, const std::string& text, float score, int type = 1) {
  auto& piece = *model.add_pieces();
  piece.set_piece(text);
  piece.set_score(score);
  piece.set_type(type);
}

// <unk> 0, <s> 1, </s> 2, the bytes of e with an acute accent 3 and 4, then pieces.
ModelProto small() {
  ModelProto model;
  model.mutable_trainer_spec()->set_model_type(2);
  model.mutable_trainer_spec()->set_byte_fallback(true);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(false);
  add_piece(model, "<unk>", 0, 2);
  add_piece(model, "<s>", 0, 3);
  add_piece(model, "</s>", 0, 3);
  add_piece(model, "<0xC3>", 0, 6);
  add_piece(model, "<0xA9>", 0, 6);
  for (const char* text : {"ab", "bc", "abc", "\u2581a"}) add_piece(model, text, -1);
  for (const char* text : {"\u2581", "a", "b", "c"}) add_piece(model, text, -9);
  return model;
}

std::unique_ptr<Tokenizer> parse(const ModelProto& model) {
  return parse_sentencepiece(model.SerializeAsString(), "t.model");
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST(SentencePiece, MergesByScoreAndFallsBackToBytes) {
  const auto tokenizer = parse(small());
  EXPECT_EQ(ids_of(*tokenizer, "bc abc"), (Ids{9, 6, 8, 6}));
  EXPECT_EQ(ids_of(*tokenizer, "b\u00E9"), (Ids{9, 11, 3, 4}));
  EXPECT_EQ(ids_of(*tokenizer, "<s>\u20AC"), (Ids{9, 0}));
  EXPECT_EQ(ids_of(*tokenizer, ""), Ids());
  EXPECT_EQ(tokenizer->decode(Ids{8, 6, 3, 4, 9, 6}), "abc\u00E9 bc");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 13);
}

TEST(SentencePiece, RefusesWhatItCannotDo) {
  const auto error_of = [](const std::string& bytes) -> std::string {
    try {
      parse_sentencepiece(bytes, "t.model");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto changed = [](const auto& change) {
    ModelProto model = small();
    change(model);
    return model.SerializeAsString();
  };
  const std::string whole = small().SerializeAsString();
  const std::pair<std::string, std::string> cases[] = {
      {"", "t.model: is no SentencePiece model"},
      {whole.substr(0, whole.size() - 3), "t.model: is no SentencePiece model, or was cut off"},
      {changed([](ModelProto& m) { m.mutable_trainer_spec()->set_model_type(1); }),
       "of type unigram: only BPE is supported"},
      {changed([](ModelProto& m) {
         m.mutable_normalizer_spec()->set_name("nmt_nfkc");
         m.mutable_normalizer_spec()->set_precompiled_charsmap("x");
       }),
       "the normalization \"nmt_nfkc\" is not supported"},
      {changed([](ModelProto& m) { add_piece(m, "ab", -3); }), "piece 13 (\"ab\") is repeated"},
      {changed([](ModelProto& m) { add_piece(m, "", -3); }), "piece 13 is empty"},
      {changed([](ModelProto& m) { add_piece(m, "x", -3, 5); }), "piece 13 has the type 5"},
      {changed([](ModelProto& m) { add_piece(m, "<0xG0>", 0, 6); }), "wanted a byte as <0x0A>"},
      {changed([](ModelProto& m) { add_piece(m, "x", NAN); }), "the score of piece 13 is nan"},
  };
  for (const auto& [bytes, message] : cases)
    EXPECT_NE(error_of(bytes).find(message), std::string::npos)
        << "wanted " << message << ", got " << error_of(bytes);
}

}  // namespace
}  // namespace tokamak
