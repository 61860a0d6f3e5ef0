// Merges the entries of files and of overrides into values of live keys. Overrides win over the
// file, and the file over those that it includes; within one source, two names of one key must
// agree.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tokamak/config/accepted.h"
#include "tokamak/config/load.h"
#include "tokamak/core/value.h"

namespace tokamak {

enum class Source { kIncluded, kFile, kOverride };

class Merge {
 public:
  /// Takes one entry as a key, an accepted name or an error.
  void add(const Entry& entry, Source source);

  /// Records "origin: name: text".
  void error(const Entry& entry, Source source, const std::string& text);

  /// Applies everything to the defaults. Throws Error with one line for each error, `earlier` ones
  /// first.
  LoadedConfig finish(std::vector<std::string> earlier);

 private:
  struct Slot {
    SettingValue value;
    Entry entry;
    Source source;
  };

  struct Failure {
    Source source;
    int64_t order;
    std::string text;
  };

  /// Sets a key on behalf of `entry`, unless an override has set it before.
  void assign(const std::string& key, const SettingValue& value, const Entry& entry, Source source);

  /// Returns the value given for a key, or null.
  const SettingValue* given(const std::string& key) const;

  void note(std::string text);
  void drop(const Entry& entry, std::string_view reason);
  void add_converter(const std::string& converter, const Entry& entry, Source source);
  void imply_model_only();
  void keep_one_length();
  void apply(LoadedConfig& loaded);

  std::map<std::string, Slot> slots_;
  /// Converters and needs by the accepted name that asks for them.
  std::map<std::string, std::pair<std::string, Source>> converters_;
  std::map<std::string, Need> needs_;
  std::vector<Failure> failures_;
  std::vector<std::string> notes_;
  std::map<std::string, std::set<std::string>> dropped_;  ///< names, by why they have no effect
  int num_unknown_ = 0;
};

}  // namespace tokamak
