#include "tokamak/data/json_text.h"

#include <simdjson.h>

#include "tokamak/core/error.h"

namespace tokamak {

const size_t JsonTextParser::kPadding = simdjson::SIMDJSON_PADDING;

class JsonTextParser::Impl {
 public:
  simdjson::dom::parser parser;
};

JsonTextParser::JsonTextParser() : impl_(std::make_unique<Impl>()) {}

JsonTextParser::~JsonTextParser() = default;

std::string_view JsonTextParser::text_of(std::string_view line, const std::string& where) {
  simdjson::dom::element document;
  const auto error = impl_->parser.parse(line.data(), line.size(), false).get(document);
  TOK_REQUIRE(error == simdjson::SUCCESS, "{}: wanted one JSON object a line, got invalid JSON: {}",
              where, simdjson::error_message(error));
  simdjson::dom::object object;
  TOK_REQUIRE(document.get(object) == simdjson::SUCCESS,
              "{}: wanted a JSON object with a \"text\" field, got another value", where);
  simdjson::dom::element field;
  TOK_REQUIRE(object.at_key("text").get(field) == simdjson::SUCCESS, "{}: no \"text\" field",
              where);
  std::string_view text;
  TOK_REQUIRE(field.get(text) == simdjson::SUCCESS,
              "{}: wanted a string in the \"text\" field, got another value", where);
  return text;
}

}  // namespace tokamak
