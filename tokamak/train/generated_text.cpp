#include "tokamak/train/generated_text.h"

#include <algorithm>
#include <utility>

namespace tokamak {
namespace {

constexpr size_t kContextIds = 32;

// Returns the length of the longest end of `text` that `stop` begins with.
size_t begun(const std::string& text, const std::string& stop) {
  for (size_t n = std::min(text.size(), stop.size()); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) return n;
  }
  return 0;
}

}  // namespace

GeneratedText::GeneratedText(const Tokenizer& tokenizer, std::vector<int32_t> prompt,
                             std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)), ids_(std::move(prompt)) {
  decoded_ = tokenizer_.decode(ids_).size();
}

std::string GeneratedText::add(int32_t id) {
  if (is_stopped_ || id >= tokenizer_.vocab_size()) return {};
  if (ids_.size() > 2 * kContextIds) {
    ids_.erase(ids_.begin(), ids_.end() - kContextIds);
    decoded_ = tokenizer_.decode(ids_).size();
  }
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  held_ += text.substr(std::min(decoded_, text.size()));
  decoded_ = text.size();
  size_t end = std::string::npos;
  size_t held = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    held = std::max(held, begun(held_, stop));
  }
  if (end != std::string::npos) {
    is_stopped_ = true;
    held_.resize(end);
    return rest();
  }
  std::string certain = held_.substr(0, held_.size() - held);
  held_.erase(0, certain.size());
  return certain;
}

std::string GeneratedText::rest() {
  return std::exchange(held_, {});
}

}  // namespace tokamak
