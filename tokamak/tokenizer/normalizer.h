// Rewrites text before it is cut into words, as the `normalizer` of a tokenizer.json says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokamak/tokenizer/split.h"

namespace tokamak {

/// A Unicode normalization form.
enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Returns `text` normalized; bytes that are not UTF-8 are kept.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

/// Puts `prefix` before a text that is not empty.
struct PrependStep {
  std::string prefix;
};

struct ReplaceStep {
  std::string from;
  std::string to;
};

struct ReplaceMatchesStep {
  RegexSplitter pattern;
  std::string to;
};

/// Removes white space at the ends.
struct StripStep {
  bool left = true;
  bool right = true;
};

/// Removes spaces at the beginning, and all but one of several in a row.
struct SqueezeSpacesStep {};

/// Removes every `mark` at the end.
struct TrimEndStep {
  std::string mark;
};

/// Makes letters small, each by itself.
struct LowercaseStep {};

/// Removes marks, which are apart from their letters after a decomposition.
struct StripAccentsStep {};

using NormalizerStep =
    std::variant<UnicodeForm, PrependStep, ReplaceStep, ReplaceMatchesStep, StripStep,
                 SqueezeSpacesStep, TrimEndStep, LowercaseStep, StripAccentsStep>;

/// Steps that are applied one after another.
class Normalizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::in_place_type<Step>, std::move(step));
  }

  bool empty() const { return steps_.empty(); }

  std::string apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

/// Returns `text` with every `from` replaced by `to`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace tokamak
