#include "tokamak/config/merge.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tokamak/config/converters.h"
#include "tokamak/config/key_table.h"
#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {

namespace {

// Each suggestion costs a pass over the table, so a hostile file must not cause a million of them.
constexpr int kMaxSuggestions = 200;

bool same_value(const SettingValue& a, const SettingValue& b) {
  return value_description(a) == value_description(b);
}

// Published files also write these lists as one string.
bool may_be_bare(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "converters" || last == "fqns" || last == "filter_fqns" ||
         last == "pipeline_parallel_split_points";
}

// torchtitan's documentation calls the dataloader data_loader.
Strings named_parts(Strings parts) {
  std::ranges::replace(parts, std::string("data_loader"), std::string("dataloader"));
  return parts;
}

// Converts values that torchtitan or its users write in another type or spelling than the key's.
SettingValue tolerated(const Key& key, const SettingValue& value) {
  if (key.name == "activation_checkpoint.selective_ac_option") {
    const int64_t* number = std::get_if<int64_t>(&value);
    if (number != nullptr) return fmt::format("{}", *number);
  }
  if (key.name == "training.tokens") {
    if (const int64_t* number = std::get_if<int64_t>(&value)) return fmt::format("{}", *number);
    if (const double* number = std::get_if<double>(&value)) return fmt::format("{:.0f}", *number);
  }
  const std::string* text = std::get_if<std::string>(&value);
  if (text != nullptr && may_be_bare(key.name)) return split_list(*text, ',');
  if (key.name == "checkpoint.exclude_from_loading") {
    const Strings* parts = std::get_if<Strings>(&value);
    if (parts != nullptr) return named_parts(*parts);
  }
  return value;
}

void use_canonical_names(Config& config) {
  for (std::string& name : config.model.converters) name = full_converter_name(name);
  Strings once;
  for (const std::string& name : config.model.converters) {
    if (std::ranges::find(once, name) == once.end()) once.push_back(name);
  }
  config.model.converters = once;
  std::string& schedule = config.parallelism.pipeline_parallel_schedule;
  if (lower_case(schedule) == "interleaved_1f1b") schedule = "Interleaved1F1B";
  for (const std::string& name :
       allowed_list(*find_key("parallelism.pipeline_parallel_schedule"))) {
    if (lower_case(name) == lower_case(schedule)) schedule = name;
  }
}

}  // namespace

void Merge::error(const Entry& entry, Source source, const std::string& text) {
  const std::string name = printable(entry.name);
  failures_.push_back({source, entry.order,
                       source == Source::kOverride
                           ? fmt::format("{}: {}", entry.origin, text)
                           : fmt::format("{}: {}: {}", entry.origin, name, text)});
}

void Merge::note(std::string text) {
  if (std::ranges::find(notes_, text) == notes_.end()) {
    notes_.push_back(std::move(text));
  }
}

const SettingValue* Merge::given(const std::string& key) const {
  const auto at = slots_.find(key);
  return at == slots_.end() ? nullptr : &at->second.value;
}

void Merge::assign(const std::string& key, const SettingValue& value, const Entry& entry,
                   Source source) {
  const auto at = slots_.find(key);
  if (at != slots_.end()) {
    const Slot& old = at->second;
    if (old.source > source) return;
    const bool conflict =
        old.source == source && old.entry.name != entry.name && !same_value(old.value, value);
    if (conflict) {
      error(
          entry, source,
          fmt::format("sets {} to {}, but {} ({}) sets it to {}: keep one of them", key,
                      value_text(value), old.entry.name, old.entry.origin, value_text(old.value)));
      return;
    }
  }
  slots_.insert_or_assign(key, Slot{value, entry, source});
}

void Merge::add(const Entry& entry, Source source) {
  if (const Key* key = find_key(entry.name)) {
    assign(entry.name, tolerated(*key, entry.value), entry, source);
    return;
  }
  const AcceptedName* row = find_accepted(entry.name);
  if (row == nullptr) {
    const bool suggest = ++num_unknown_ <= kMaxSuggestions;
    error(entry, source, fmt::format("no such key{}", suggest ? unknown_key_hint(entry.name) : ""));
    return;
  }
  const std::string means(row->means);
  switch (row->fate) {
    case Fate::kDrop:
      return drop(entry, row->note);
    case Fate::kOnly:
      needs_.erase(entry.name);
      if (const std::string value = value_text(entry.value); value != means)
        needs_[entry.name] = {entry.name, value, std::string(row->note)};
      return;
    case Fate::kRefuse:
      return error(entry, source, fmt::format("removed: {}", row->note));
    case Fate::kConvert:
      return add_converter(means, entry, source);
    case Fate::kInvert: {
      const bool* flag = std::get_if<bool>(&entry.value);
      if (flag == nullptr) {
        error(entry, source,
              fmt::format("wanted true or false, got {}", value_description(entry.value)));
        return;
      }
      assign(means, !*flag, entry, source);
      break;
    }
    case Fate::kRename:
      assign(means, tolerated(*find_key(means), entry.value), entry, source);
      break;
  }
  note(fmt::format("{} is now {}{}{}{}", entry.name, row->fate == Fate::kInvert ? "not " : "",
                   means, row->note.empty() ? "" : ": ", row->note));
}

void Merge::add_converter(const std::string& converter, const Entry& entry, Source source) {
  const auto* text = std::get_if<std::string>(&entry.value);
  const bool* flag = std::get_if<bool>(&entry.value);
  converters_.erase(entry.name);
  if (flag == nullptr && (text == nullptr || (!text->empty() && *text != "dynamic"))) {
    error(entry, source,
          "wanted true, false, \"dynamic\" or \"\", got " + value_description(entry.value));
  } else if (flag != nullptr ? *flag : !text->empty()) {
    converters_[entry.name] = {converter, source};
    note(fmt::format("{} is now model.converters = [\"{}\"]", entry.name, converter));
  }
}

// A flag that is off asks for nothing, so it needs no note.
void Merge::drop(const Entry& entry, std::string_view reason) {
  const bool* flag = std::get_if<bool>(&entry.value);
  if (flag == nullptr || *flag) dropped_[std::string(reason)].insert(entry.name);
}

void Merge::apply(LoadedConfig& loaded) {
  const Config defaults;
  for (const auto& [name, slot] : slots_) {
    const Key& key = *find_key(name);
    const std::string text = set_value(loaded.config, key, slot.value);
    if (!text.empty()) error(slot.entry, slot.source, text);
    if (!text.empty() || same_value(get_value(loaded.config, key), get_value(defaults, key)))
      continue;
    if (lacks_converter(name, loaded.config))
      note(fmt::format("{}: no effect in this run: {}", name, key.help));
  }
}

// Who asks for a Hugging Face folder asks for a last save of the weights alone.
void Merge::imply_model_only() {
  const auto at = slots_.find("checkpoint.last_save_in_hf");
  if (at == slots_.end() || given("checkpoint.last_save_model_only") != nullptr) return;
  const bool* flag = std::get_if<bool>(&at->second.value);
  const Slot slot = at->second;
  if (flag != nullptr && *flag)
    assign("checkpoint.last_save_model_only", true, slot.entry, slot.source);
}

// Of steps, tokens and epochs an override replaces what the file says; one source gives one.
void Merge::keep_one_length() {
  constexpr const char* kLengths[] = {"training.steps", "training.tokens", "training.epochs"};
  const auto is_none = [](const Slot& slot) {
    const std::string* text = std::get_if<std::string>(&slot.value);
    return std::holds_alternative<std::monostate>(slot.value) ||
           (text != nullptr && *text == "none");
  };
  std::string kept;
  for (const Source source : {Source::kOverride, Source::kFile}) {
    for (const char* name : kLengths) {
      const auto at = slots_.find(name);
      if (at == slots_.end() || at->second.source != source || is_none(at->second)) continue;
      if (kept.empty()) {
        kept = name;
        continue;
      }
      const Slot& first = slots_.at(kept);
      if (first.source == source) {
        error(at->second.entry, source,
              fmt::format("{} ({}) says how long the run is too: keep one of them", kept,
                          first.entry.origin));
      } else {
        note(fmt::format("{} replaces {} of the file", kept, name));
        slots_.erase(at);
      }
    }
  }
}

LoadedConfig Merge::finish(std::vector<std::string> earlier) {
  imply_model_only();
  keep_one_length();
  LoadedConfig loaded;
  apply(loaded);
  std::ranges::stable_sort(failures_, [](const Failure& a, const Failure& b) {
    return std::pair(a.source, a.order) < std::pair(b.source, b.order);
  });
  for (const Failure& failure : failures_) earlier.push_back(failure.text);
  if (!earlier.empty()) throw Error(fmt::format("{}", fmt::join(earlier, "\n")));
  const auto listed = slots_.find("model.converters");
  for (const auto& [name, added] : converters_) {
    if (listed == slots_.end() || listed->second.source <= added.second)
      loaded.config.model.converters.push_back(added.first);
  }
  use_canonical_names(loaded.config);
  for (const auto& [reason, names] : dropped_)
    note(fmt::format("{}: accepted without effect: {}", fmt::join(names, ", "), reason));
  loaded.notes = std::move(notes_);
  loaded.names_model = given("model.name") != nullptr;
  for (const auto& [name, need] : needs_) loaded.needs.push_back(need);
  return loaded;
}

}  // namespace tokamak
