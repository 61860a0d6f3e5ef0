#include "tokamak/hub/s3_xml.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/core/value.h"

namespace tokamak {
namespace {

// Returns what lies in the first element `name` from `at` on, and moves `at` behind it.
std::optional<std::string_view> next_element(std::string_view xml, std::string_view name,
                                             size_t& at) {
  const std::string open = fmt::format("<{}>", name);
  const std::string close = fmt::format("</{}>", name);
  const size_t begin = xml.find(open, at);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = xml.find(close, begin);
  if (end == std::string_view::npos) return std::nullopt;
  at = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::string without_entities(std::string_view text) {
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&amp;", '&'}, {"&lt;", '<'},
                                                             {"&gt;", '>'},  {"&quot;", '"'},
                                                             {"&#34;", '"'}, {"&apos;", '\''}};
  std::string out;
  while (!text.empty()) {
    size_t taken = 1;
    char c = text.front();
    for (const auto& [entity, meaning] : kEntities) {
      if (!text.starts_with(entity)) continue;
      taken = entity.size();
      c = meaning;
    }
    out += c;
    text.remove_prefix(taken);
  }
  return out;
}

int hex_digit(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const size_t at = kDigits.find(static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c));
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

std::string without_escapes(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
                           hex_digit(text[i + 2]) >= 0;
    if (is_escape) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

std::string xml_text(std::string_view xml, std::string_view name) {
  size_t at = 0;
  return without_entities(next_element(xml, name, at).value_or(""));
}

S3Page parse_s3_list(std::string_view xml, const std::string& what) {
  TOK_REQUIRE(xml.find("<ListBucketResult") != std::string_view::npos &&
                  xml.find("</ListBucketResult>") != std::string_view::npos,
              "{}: wanted a list of objects, got \"{}\"", what, printable(xml));
  const bool is_escaped = xml_text(xml, "EncodingType") == "url";
  S3Page page;
  size_t at = 0;
  while (const auto row = next_element(xml, "Contents", at)) {
    const std::string key = xml_text(*row, "Key");
    const std::string size = xml_text(*row, "Size");
    const auto bytes = parse_number<int64_t>(size);
    TOK_REQUIRE(bytes && *bytes >= 0, "{}: an object has a size of \"{}\"", what, printable(size));
    page.objects.push_back({.key = is_escaped ? without_escapes(key) : key,
                            .size = *bytes,
                            .tag = xml_text(*row, "ETag")});
    const std::string& named = page.objects.back().key;
    TOK_REQUIRE(without_controls(named) == named && !named.empty(),
                "{}: an object has the key \"{}\"", what, printable(named));
  }
  if (xml_text(xml, "IsTruncated") == "true") {
    page.next = xml_text(xml, "NextContinuationToken");
    TOK_REQUIRE(!page.next.empty(), "{}: the list goes on, but has no NextContinuationToken", what);
  }
  return page;
}

}  // namespace tokamak
