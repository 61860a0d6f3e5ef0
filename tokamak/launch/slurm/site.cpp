#include "tokamak/launch/slurm/site.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <fmt/format.h>

#include "tokamak/core/embedded.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"
#include "tokamak/core/toml_reader.h"

namespace tokamak::launch {

std::span<const EmbeddedFile> site_files();

namespace {

constexpr const char* kKeys[] = {"about",         "job.ranks_per_node", "job.cpus_per_rank",
                                 "script.before", "script.after",       "script.broadcast_to"};
constexpr const char* kSections[] = {"sbatch", "srun", "mpirun", "environment"};

[[noreturn]] void refuse_key(const SiteSetting& setting, const std::string& origin) {
  const auto* nearest = std::ranges::min_element(kKeys, [&](const char* a, const char* b) {
    return name_distance(setting.name, a) < name_distance(setting.name, b);
  });
  fail(
      "{}: {}: no such key of a site; the nearest is {}, and [sbatch], [srun], [mpirun] and "
      "[environment] take any name",
      origin, printable(setting.name), *nearest);
}

std::string text_of(const Entry& entry) {
  if (const auto* text = std::get_if<std::string>(&entry.value)) {
    // The script puts values into double quotes.
    TOK_REQUIRE(text->find_first_of("\"`\n\\") == std::string::npos,
                "{}: {}: wanted a value without quotes, backquotes, backslashes and line ends",
                entry.origin, entry.name);
    return *text;
  }
  const auto* number = std::get_if<int64_t>(&entry.value);
  TOK_REQUIRE(number != nullptr, "{}: {}: wanted a string or a whole number, got {}", entry.origin,
              entry.name, value_description(entry.value));
  return std::to_string(*number);
}

int64_t count_of(const SiteSetting& setting, const std::string& origin) {
  const int64_t count = std::atoll(setting.value.c_str());
  TOK_REQUIRE(count >= 1 && count <= 4096, "{}: {} = {}: wanted 1 to 4096", origin, setting.name,
              setting.value);
  return count;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                              "XYZ0123456789_-") == std::string_view::npos;
}

void add_setting(Site& site, SiteSetting setting, const std::string& origin) {
  TOK_REQUIRE(!setting.why.empty(), "{}: {}: wanted {{ value = ..., why = \"...\" }}", origin,
              printable(setting.name));
  if (setting.name == "job.ranks_per_node") {
    site.ranks_per_node = count_of(setting, origin);
  } else if (setting.name == "job.cpus_per_rank") {
    site.cpus_per_rank = count_of(setting, origin);
  } else if (setting.name == "script.before") {
    site.before.push_back(std::move(setting));
  } else if (setting.name == "script.after") {
    site.after.push_back(std::move(setting));
  } else if (setting.name == "script.broadcast_to") {
    site.broadcast_to = std::move(setting);
  } else {
    const size_t dot = setting.name.find('.');
    const std::string section = setting.name.substr(0, dot);
    const bool is_open = std::ranges::find(kSections, section) != std::end(kSections);
    if (!is_open || dot == std::string::npos) refuse_key(setting, origin);
    setting.name = setting.name.substr(dot + 1);
    TOK_REQUIRE(is_name(setting.name), "{}: {}.{}: wanted a name of letters, digits, - and _",
                origin, section, printable(setting.name));
    auto& list = section == "sbatch"   ? site.sbatch
                 : section == "srun"   ? site.srun
                 : section == "mpirun" ? site.mpirun
                                       : site.environment;
    list.push_back(std::move(setting));
  }
}

}  // namespace

Site parse_site(std::string_view text, const std::string& name) {
  Site site{.name = std::filesystem::path(name).stem()};
  std::vector<Entry> entries = read_toml(text, name).entries;
  std::ranges::stable_sort(entries,
                           [](const Entry& a, const Entry& b) { return a.order < b.order; });
  std::vector<std::pair<SiteSetting, std::string>> settings;
  for (const Entry& entry : entries) {
    if (entry.name == "about") {
      site.about = text_of(entry);
      continue;
    }
    const size_t dot = entry.name.rfind('.');
    const std::string field = dot == std::string::npos ? "" : entry.name.substr(dot + 1);
    if (field != "value" && field != "why") {
      const SiteSetting setting{.name = entry.name};
      const std::string section = entry.name.substr(0, entry.name.find('.'));
      const bool is_known = std::ranges::find(kKeys, entry.name) != std::end(kKeys) ||
                            (dot != std::string::npos &&
                             std::ranges::find(kSections, section) != std::end(kSections));
      if (!is_known) refuse_key(setting, entry.origin);
      fail("{}: {}: wanted {{ value = ..., why = \"...\" }}", entry.origin, printable(entry.name));
    }
    const std::string key = entry.name.substr(0, dot);
    auto at = std::ranges::find_if(settings, [&](const auto& s) { return s.first.name == key; });
    if (at == settings.end()) {
      settings.push_back({{.name = key}, entry.origin});
      at = settings.end() - 1;
    }
    (field == "value" ? at->first.value : at->first.why) = text_of(entry);
  }
  for (auto& [setting, origin] : settings) add_setting(site, std::move(setting), origin);
  return site;
}

Site find_site(const std::string& word) {
  if (word.find('/') != std::string::npos || word.ends_with(".toml")) {
    TOK_REQUIRE(path_exists(word), "--site {}: no such file", word);
    return parse_site(read_file(word), word);
  }
  std::string nearest;
  for (const EmbeddedFile& file : site_files()) {
    const std::string name = std::filesystem::path(file.name).stem();
    if (name == word) return parse_site(file.text, "sites/" + std::string(file.name));
    if (nearest.empty() || name_distance(word, name) < name_distance(word, nearest)) nearest = name;
  }
  fail(
      "--site {}: no such site; the nearest is {}, --site list has all, and a file needs a slash "
      "or .toml",
      printable(word), nearest);
}

std::string sites_text() {
  std::string text;
  for (const EmbeddedFile& file : site_files()) {
    const Site site = parse_site(file.text, "sites/" + std::string(file.name));
    text +=
        fmt::format("{:<14}{:>3} ranks per node  {}\n", site.name, site.ranks_per_node, site.about);
  }
  return text;
}

}  // namespace tokamak::launch
