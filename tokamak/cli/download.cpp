#include <chrono>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/hub/model_hub.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kMega = 1e6;

HubAssets assets_of(const std::vector<std::string>& words) {
  HubAssets assets;
  for (const std::string& word : words) {
    TOK_REQUIRE(word == "config" || word == "tokenizer" || word == "weights" || word == "all",
                "--assets {}: wanted config, tokenizer, weights or all", word);
    assets.config = assets.config || word == "config" || word == "all";
    assets.tokenizer = assets.tokenizer || word == "tokenizer" || word == "all";
    assets.weights = assets.weights || word == "weights" || word == "all";
  }
  return assets;
}

// Shows how much of a file is there: a live line on a terminal, else a line for each file.
class Display {
 public:
  Display(std::string path, int64_t size)
      : path_(std::move(path)), size_(size), is_live_(is_on_terminal(STDERR_FILENO)) {}

  void show(int64_t bytes) {
    if (first_ < 0) first_ = bytes;
    const auto now = Clock::now();
    if (!is_live_ || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(bytes - first_) / std::max(seconds, 1e-3);
    fmt::print(stderr, "{}{}: {:.1f} of {:.1f} MB, {:.1f} MB/s", kEraseLine, path_,
               static_cast<double>(bytes) / kMega, static_cast<double>(size_) / kMega,
               rate / kMega);
  }

  void end(bool is_new) const {
    if (is_live_ && is_new) fmt::print(stderr, "{}", kEraseLine);
    fmt::print("{}: {:.1f} MB{}\n", path_, static_cast<double>(size_) / kMega,
               is_new ? "" : ", already there");
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string path_;
  int64_t size_;
  bool is_live_;
  int64_t first_ = -1;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
};

}  // namespace

int run_download(Args args) {
  CLI::App app(
      "Downloads config, tokenizer and weights of a model, or the files of a dataset, from\n"
      "Hugging Face's hub or one that speaks its interface. An interrupted download resumes where\n"
      "it stopped; sizes and hashes are checked. The token may also be in HF_TOKEN or where "
      "Hugging\n"
      "Face's login puts it.",
      "tokamak download");
  std::string repository;
  std::string folder;
  std::string revision = "main";
  std::string token;
  std::string endpoint = hub_endpoint();
  bool is_dataset = false;
  std::vector<std::string> assets{"all"};
  app.add_option("repository", repository, "OWNER/NAME; of a dataset also OWNER/NAME#FOLDER")
      ->required();
  app.add_flag("--dataset", is_dataset, "the repository is a dataset");
  app.add_option("--output,-o", folder,
                 "the folder to fill; default: assets/hf/NAME, of a dataset data/NAME");
  app.add_option("--revision", revision, "a branch, tag or commit")->capture_default_str();
  app.add_option("--assets", assets, "config, tokenizer, weights or all")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--token", token, "of an account that may read the repository");
  app.add_option("--endpoint", endpoint, "the hub's address; HF_ENDPOINT sets it too")
      ->capture_default_str();
  if (!parse(app, args)) return 0;
  const size_t hash = is_dataset ? repository.find('#') : std::string::npos;
  const std::string part = hash == std::string::npos ? "" : repository.substr(hash + 1);
  repository.resize(std::min(hash, repository.size()));
  const size_t slash = repository.find('/');
  TOK_REQUIRE(slash != std::string::npos && slash > 0 && slash + 1 < repository.size() &&
                  repository.find('/', slash + 1) == std::string::npos &&
                  repository.find("..") == std::string::npos,
              "{}: wanted a repository OWNER/NAME", repository);
  const fs::path to =
      folder.empty() ? fs::path(is_dataset ? "data" : "assets/hf") / repository.substr(slash + 1)
                     : fs::path(folder);

  ModelHub hub(endpoint, token.empty() ? hub_token() : token,
               is_dataset ? HubKind::kDataset : HubKind::kModel);
  const HubSnapshot snapshot = hub.snapshot(repository, revision, part);
  const std::vector<HubFile> files =
      is_dataset ? snapshot.files : choose_files(snapshot, assets_of(assets));
  make_folders(to);
  for (const HubFile& file : files) {
    Display display(file.path, file.size);
    display.end(hub.download(snapshot, file, to, [&](int64_t bytes) { display.show(bytes); }));
  }
  fmt::print("{} at {} is in {}\n", repository, snapshot.commit, to.string());
  return 0;
}

}  // namespace tokamak::cli
