#include "rows/row_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/embedded.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/core/toml_reader.h"
#include "tokamak/price/machine/device_names.h"

namespace tokamak {

std::span<const EmbeddedFile> row_words();

namespace {

// The allowed values of each column; blank means any text. Columns of files come first.
constexpr auto kColumns = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"",
      "source gpu machine model zero_stage_or_fsdp precision recompute notes n_gpus n_layers "
      "hidden ffn heads kv_heads vocab seq gbs mbs tp pp vp cp dp step_time_s step_time_ms "
      "tokens_per_s_per_gpu tflops_per_gpu mfu_pct software"},
     {"",
      "shape device flavor family family_gpu shard_ranks stated_peak machine_file machine_names"},
     {"yes, no",
      "whole_vocab_shares recomputes_ops keeps_gathered gated_mlp tied "
      "pads_logits sequence_parallel one_layer_chunks even_racks rounded_tokens hardware_flops "
      "calibrates"},
     {"bf16, fp8, fp4, unknown", "products"},
     {"none, full, selective, selective-layers, unknown", "recompute_mode"},
     {"ddp, zero1, zero2, fsdp", "sharding"},
     {"noted, named", "mixture"}});

bool lists(std::string_view list, char separator, std::string_view word) {
  const std::vector<std::string> words = split_list(list, separator);
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string_view allowed_values(const std::string& origin, std::string_view column) {
  for (const auto& [values, columns] : kColumns) {
    if (lists(columns, ' ', column)) return values;
  }
  fail("{}: no column \"{}\"", origin, printable(column));
}

const std::string& text_of(const Entry& entry) {
  const auto* text = std::get_if<std::string>(&entry.value);
  TOK_REQUIRE(text != nullptr, "{}: {}: wanted a text, got {}", entry.origin, printable(entry.name),
              value_description(entry.value));
  return *text;
}

std::string capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return text;
}

// Returns what expressions see. The text is cut, because std::regex recurses over it.
std::string seen(std::string_view text) {
  constexpr size_t kMost = 1024;
  std::string lower = lower_case(text.substr(0, kMost));
  std::replace(lower.begin(), lower.end(), '_', ' ');
  return lower;
}

// Returns the text with `value_of(NAME)` in place of each "{NAME}" that has a value.
template <class F>
std::string replaced(std::string text, F value_of) {
  for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at)) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) break;
    const std::optional<std::string> value = value_of(text.substr(at + 1, end - at - 1));
    if (value) text.replace(at, end + 1 - at, *value);
    at += value ? value->size() : 1;
  }
  return text;
}

// Replaces "{hidden}" by its text, "{device^}" by its text in capitals, and "{4*hidden}" by the
// product, which is blank if there is no number.
std::string filled(const std::string& text, const RowTexts& texts) {
  return replaced(text, [&](const std::string& name) -> std::optional<std::string> {
    if (name.ends_with('^')) return capitals(text_in(texts, name.substr(0, name.size() - 1)));
    const size_t times = name.find('*');
    if (times == std::string::npos) return text_in(texts, name);
    const auto factor = number_of(name.substr(0, times));
    const auto number = number_of(text_in(texts, name.substr(times + 1)));
    return factor && number ? fmt::format("{}", *factor * *number) : "";
  });
}

}  // namespace

const std::string& text_in(const RowTexts& texts, std::string_view column) {
  static const std::string kBlank;
  const auto found = texts.find(column);
  return found == texts.end() ? kBlank : found->second;
}

std::optional<double> number_of(std::string_view text) {
  double number = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = code == std::errc() && end == text.data() + text.size();
  return is_number && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

RowRules::RowRules(std::string_view toml, const std::string& name) {
  TomlEntries read = read_toml(toml, name);
  std::vector<Entry>& entries = read.entries;
  entries.insert(entries.end(), read.empty_tables.begin(), read.empty_tables.end());
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.order < b.order; });
  for (const Entry& entry : entries) add(entry);
  for (const Rule& rule : rules_) {
    const std::string_view values = allowed_values(rule.origin, rule.column);
    TOK_REQUIRE(values.empty() || lists(values, ',', rule.value), "{}: no value \"{}\": wanted {}",
                rule.origin, printable(rule.value), values);
  }
}

const RowRules& RowRules::built_in() {
  static const RowRules kRules = [] {
    const EmbeddedFile& file = row_words().front();
    RowRules rules(file.text, std::string(file.name));
    rules.add_device_aliases();
    return rules;
  }();
  return kRules;
}

// Keys are "words.NAME", "shape.NAME.PART.COLUMN", "COLUMN.RULE.COLUMN", or "COLUMN.RULE" for a
// rule that always holds. Rules may have dots in their names.
void RowRules::add(const Entry& entry) {
  const bool holds_always = std::holds_alternative<std::monostate>(entry.value);
  const size_t first = entry.name.find('.');
  const size_t last = holds_always ? entry.name.size() : entry.name.rfind('.');
  const std::string section = entry.name.substr(0, first);
  if (section == "words" && first == last) {
    words_[entry.name.substr(first + 1)] =
        fmt::format("(?:{})", with_words(entry.origin, text_of(entry)));
    return;
  }
  TOK_REQUIRE(first < last, "{}: {}: wanted VALUE = {{ COLUMN = 'regular expression' }}",
              entry.origin, printable(entry.name));
  if (section == "shape") return add_to_shape(entry);
  const std::string name = entry.name.substr(first + 1, last - first - 1);
  if (rules_.empty() || rules_.back().column != section || rules_.back().name != name)
    rules_.push_back({.origin = fmt::format("{}: {}.{}", entry.origin, section, printable(name)),
                      .column = section,
                      .name = name,
                      .value = name});
  if (holds_always) return;
  Rule& rule = rules_.back();
  const std::string part = entry.name.substr(last + 1);
  if (part == "is") {
    rule.value = text_of(entry);
  } else {
    rule.conditions.push_back(condition(rule.origin, part, text_of(entry)));
  }
}

void RowRules::add_to_shape(const Entry& entry) {
  const std::vector<std::string> parts = split_list(entry.name, '.');
  TOK_REQUIRE(parts.size() == 4 && (parts[2] == "columns" || parts[2] == "texts"),
              "{}: {}: wanted shape.NAME.columns or shape.NAME.texts", entry.origin,
              printable(entry.name));
  allowed_values(fmt::format("{}: {}", entry.origin, printable(entry.name)), parts[3]);
  if (shapes_.empty() || shapes_.back().name != parts[1]) shapes_.push_back({.name = parts[1]});
  if (parts[2] == "texts") {
    shapes_.back().texts[parts[3]] = text_of(entry);
  } else {
    shapes_.back().columns.emplace_back(parts[3], text_of(entry));
  }
}

RowRules::Condition RowRules::condition(const std::string& origin, std::string_view column,
                                        std::string_view text) const {
  allowed_values(origin, column);
  const bool is_found = !text.starts_with('!');
  const std::string pattern = with_words(origin, std::string(text.substr(is_found ? 0 : 1)));
  try {
    return {.column = std::string(column), .pattern = std::regex(pattern), .is_found = is_found};
  } catch (const std::regex_error& error) {
    fail("{}: {} = '{}': not a regular expression: {}", origin, column, printable(text),
         error.what());
  }
}

std::string RowRules::with_words(const std::string& origin, std::string text) const {
  return replaced(std::move(text), [&](const std::string& name) -> std::optional<std::string> {
    if (name.empty() || std::isalpha(static_cast<unsigned char>(name[0])) == 0) return std::nullopt;
    const std::string& word = text_in(words_, name);
    TOK_REQUIRE(!word.empty(), "{}: no word {{{}}}", origin, printable(name));
    return word;
  });
}

// An alias is a list of expressions with blanks between them: the first must match a name, the
// others may match anywhere. Devices without a machine come before others, and aliases of more
// parts before shorter ones.
void RowRules::add_device_aliases() {
  std::vector<Rule> rules;
  for (const price::DeviceNames& device : price::device_names()) {
    for (const std::string& alias : device.aliases) {
      Rule rule{.origin = device.part, .column = "device", .name = alias, .value = device.machine};
      for (const std::string& part : split_list(alias, ' ')) {
        const bool is_name = rule.conditions.empty();
        rule.conditions.push_back(
            condition(device.part, "gpu", is_name ? "{maker}" + part + "{form}" : part));
      }
      rules.push_back(std::move(rule));
    }
  }
  std::stable_sort(rules.begin(), rules.end(), [](const Rule& a, const Rule& b) {
    const auto place = [](const Rule& rule) {
      return std::pair(!rule.value.empty(), -static_cast<int>(rule.conditions.size()));
    };
    return place(a) < place(b);
  });
  rules_.insert(rules_.begin(), std::make_move_iterator(rules.begin()),
                std::make_move_iterator(rules.end()));
}

std::vector<std::string> RowRules::values_of(std::string_view column) const {
  std::vector<std::string> values;
  for (const Rule& rule : rules_) {
    if (rule.column == column && !rule.value.empty() &&
        std::find(values.begin(), values.end(), rule.value) == values.end())
      values.push_back(rule.value);
  }
  return values;
}

bool RowRules::is_of_files(std::string_view column) {
  return lists(kColumns.front().second, ' ', column);
}

void RowRules::fill(RowTexts& texts, const RowShape& shape) const {
  texts["shape"] = shape.name;
  for (const auto& [column, value] : shape.texts) texts[column] = filled(value, texts);
  RowTexts views;
  const auto holds = [&](const Condition& condition, std::string& value) {
    auto view = views.find(condition.column);
    if (view == views.end())
      view = views.emplace(condition.column, seen(text_in(texts, condition.column))).first;
    std::smatch match;
    if (std::regex_search(view->second, match, condition.pattern) != condition.is_found)
      return false;
    if (match.size() > 1) value = match.format(value);
    return true;
  };
  std::string_view done;  // the column that the last rule that held has filled
  for (const Rule& rule : rules_) {
    if (rule.column == done || !text_in(texts, rule.column).empty()) continue;
    std::string value = rule.value;
    if (!std::all_of(rule.conditions.begin(), rule.conditions.end(),
                     [&](const Condition& condition) { return holds(condition, value); }))
      continue;
    done = rule.column;
    texts[rule.column] = filled(value, texts);
    views.erase(rule.column);
  }
}

}  // namespace tokamak
