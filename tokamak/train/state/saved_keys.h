// The configuration that a checkpoint was trained with, as far as it decides what is learnt.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokamak {

/// Keys and their values as text.
using KeyValues = std::vector<std::pair<std::string, std::string>>;

/// Returns those of all keys that decide what a run learns: of the model, its optimizer, its
/// schedule, its data and its number formats, but not of meshes, files and logs.
KeyValues learning_keys(const KeyValues& all);

std::string to_json(const KeyValues& keys);

/// Returns "optimizer.lr 0.0003 (now 0.001), ..." for the keys whose values differ from the saved
/// ones, or "". Keys that only one side knows are passed over. Throws Error that begins with `what`
/// if the text is not to_json()'s.
std::string changed_keys(std::string_view saved, const KeyValues& now, std::string_view what);

/// Whether a key says how long a run is, which changes when a run is extended.
bool is_length(std::string_view key);

}  // namespace tokamak
