// Every published torchtitan file: those of mainline keys load, the others name each foreign key.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "tokamak/config/accepted.h"
#include "tokamak/config/check.h"
#include "tokamak/config/key_table.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/toml_reader.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

const fs::path kShared = TOK_SOURCE_DIR "/../shared";

bool is_dotted_name(const std::string& text) {
  return text.find('.') != std::string::npos &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos;
}

// The first cells of the tables of appendices A and B.
std::set<std::string> mainline_names(const std::string& reference) {
  std::set<std::string> names;
  std::istringstream lines(reference.substr(reference.find("## Appendix A.")));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("## Appendix C.", 0) == 0) break;
    if (line.rfind("## Appendix B.", 0) == 0) section.clear();
    if (line.rfind("`[", 0) == 0) section = line.substr(2, line.find(']') - 2) + ".";
    if (line.rfind("| ", 0) != 0) continue;
    std::istringstream cell(line.substr(2, line.find(" |", 2) - 2));
    for (std::string word; cell >> word;) {
      if (word.back() == ',') word.pop_back();
      if (is_dotted_name(section + word)) names.insert(section + word);
    }
  }
  names.erase("key");
  return names;
}

std::vector<fs::path> corpus() {
  std::vector<fs::path> files;
  for (const char* folder : {"torchtitan", "frontier"}) {
    for (const auto& entry : fs::directory_iterator(kShared / "configs" / folder)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Corpus : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path reference = kShared / "reference/torchtitan.md";
    if (!fs::exists(reference) || !fs::exists(kShared / "configs")) {
      GTEST_SKIP() << "no " << reference << " or configs beside it";
    }
    names_ = mainline_names(read_file(reference));
  }

  std::set<std::string> names_;
};

TEST_F(Corpus, EveryMainlineNameIsKnown) {
  EXPECT_GE(names_.size(), 253U);
  for (const std::string& name : names_) {
    const bool is_header = name.find(".key") != std::string::npos;
    EXPECT_TRUE(is_header || find_key(name) != nullptr || find_accepted(name) != nullptr) << name;
  }
}

TEST_F(Corpus, MainlineLoadsAndForeignIsNamed) {
  int num_mainline = 0;
  int num_foreign = 0;
  int num_broken = 0;
  for (const fs::path& path : corpus()) {
    std::vector<std::string> foreign;
    try {
      for (const Entry& entry : read_toml(read_file(path), path.string()).entries) {
        if (names_.count(entry.name) == 0) foreign.push_back(entry.name);
      }
    } catch (const Error& error) {
      ++num_broken;
      const std::string text = error.what();
      EXPECT_EQ(text.rfind(path.string() + ":", 0), 0U) << text;
      EXPECT_NE(text.find(": not valid TOML: "), std::string::npos) << text;
      continue;
    }
    std::string error;
    try {
      const LoadedConfig loaded = load_config(path, {});
      validate(loaded.config, default_world_size(loaded.config));
      needs(loaded.config, Capabilities());
    } catch (const Error& e) {
      error = e.what();
    }
    (foreign.empty() ? num_mainline : num_foreign)++;
    EXPECT_EQ(error.empty(), foreign.empty()) << path << ": " << error;
    for (const std::string& name : foreign) {
      EXPECT_NE(error.find(": " + name + ": no such key"), std::string::npos)
          << path << ": " << name;
    }
  }
  EXPECT_EQ(num_broken, 3);
  EXPECT_GT(num_mainline, 300);
  EXPECT_GT(num_foreign, 0);
}

}  // namespace
}  // namespace tokamak
