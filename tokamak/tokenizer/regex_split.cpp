#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokamak/core/error.h"
#include "tokamak/tokenizer/oniguruma.h"
#include "tokamak/tokenizer/split.h"

namespace tokamak {

template <auto kFree>
struct FreeBy {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};

namespace {

constexpr size_t kJitStackMin = size_t{64} << 10U;
constexpr size_t kJitStackMax = size_t{256} << 20U;
constexpr uint32_t kMatchLimit = 100'000'000;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

/// The buffers with which one thread matches, made on its first search with a pattern.
struct Workspace {
  std::unique_ptr<pcre2_match_data, FreeBy<pcre2_match_data_free>> data{
      pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeBy<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeBy<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr)};

  Workspace() {
    TOK_CHECK(data && context && stack, "PCRE2: out of memory");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), kMatchLimit);
  }
};

}  // namespace

struct RegexSplitter::Code {
  std::unique_ptr<pcre2_code, FreeBy<pcre2_code_free>> code;
  std::string what;
};

RegexSplitter::RegexSplitter(std::string_view pattern, std::string_view what)
    : code_(std::make_unique<Code>()) {
  int error = 0;
  size_t offset = 0;
  code_->what = what;
  const std::string spelled = from_oniguruma(pattern, what);
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE,
      &error, &offset, nullptr));
  TOK_REQUIRE(code_->code != nullptr, "{}: cannot parse the pattern: {} at byte {}", what,
              message_of(error), offset);
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

bool RegexSplitter::next(std::string_view text, Match& match, bool takes_empty) const {
  thread_local Workspace workspace;
  size_t from = match.end;
  while (from < text.size()) {
    const int rc = pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                               text.size(), from, 0, workspace.data.get(), workspace.context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    TOK_REQUIRE(rc >= 0, "{}: the pattern gives up at byte {} of a text of {} bytes: {}",
                code_->what, from, text.size(), message_of(rc));
    const size_t* ends = pcre2_get_ovector_pointer(workspace.data.get());
    if (ends[1] > ends[0] || (takes_empty && ends[0] > match.end)) {
      match = {ends[0], ends[1]};
      return true;
    }
    from = std::max(from, ends[1]) + 1;
    while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0U) == 0x80U) ++from;
  }
  return false;
}

}  // namespace tokamak
