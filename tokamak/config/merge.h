// Merges the entries of a file and of overrides into values of live keys. Overrides win over the
// file; within one source, two names of one key must agree.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tokamak/config/load.h"
#include "tokamak/config/retired.h"
#include "tokamak/core/value.h"

namespace tokamak {

enum class Source { kFile, kOverride };

class Merge {
 public:
  /// Takes one entry as a live key, a retired one or an error.
  void add(const Entry& entry, Source source);

  /// Sets a live key on behalf of `entry`, unless an override has set it before.
  void assign(const std::string& key, const SettingValue& value, const Entry& entry, Source source);

  /// Records "origin: name: text".
  void error(const Entry& entry, Source source, const std::string& text);

  void need(Need need) { needs_.push_back(std::move(need)); }

  /// Returns the value given for a live key, or null.
  const SettingValue* given(const std::string& key) const;

  /// Returns what a retired key of Fate::kTranslate was set to last, or null.
  const SettingValue* given_retired(const std::string& name) const;

  /// Applies everything to the defaults. Throws Error with one line for each error, `earlier` ones
  /// first.
  LoadedConfig finish(std::vector<std::string> earlier);

 private:
  struct Slot {
    SettingValue value;
    Entry entry;
    Source source;
  };

  struct Deferred {
    const RetiredKey* key;
    Entry entry;
    Source source;
  };

  struct Failure {
    Source source;
    int64_t order;
    std::string text;
  };

  void note(std::string text);
  void drop(const Entry& entry, std::string_view reason);
  void split_old_pipeline();
  void imply_model_only();
  void keep_one_length();
  void apply(LoadedConfig& loaded);

  std::map<std::string, Slot> slots_;
  std::vector<Deferred> deferred_;
  std::vector<Failure> failures_;
  std::vector<std::string> notes_;
  std::map<std::string, std::set<std::string>> dropped_;  ///< names, by why they have no effect
  std::vector<Need> needs_;
  int num_unknown_ = 0;
};

/// Turns one retired key of Fate::kTranslate into live ones; runs after all entries were added.
void translate(const RetiredKey& key, const Entry& entry, Source source, Merge& merge);

}  // namespace tokamak
