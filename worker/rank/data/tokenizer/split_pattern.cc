#include "worker/rank/data/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::data {
namespace {

constexpr size_t kJitStackStart = 32 * 1024, kJitStackLimit = 16 * 1024 * 1024;

std::string message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

std::string quote(const std::string& text) { return absl::StrCat("\\Q", text, "\\E"); }

size_t next_character(std::string_view text, size_t at) {
  ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

}  // namespace

struct SplitPattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  bool jit = false;

  ~Compiled() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }

  // Finds the first match at or after `start`: returns the number of groups, PCRE2_ERROR_NOMATCH, or another error.
  int find(std::string_view text, size_t start) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (jit) {
      const int found = pcre2_jit_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, match, context);
      if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
    }
    return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, context);
  }
};

SplitPattern::SplitPattern(const Options& options, std::unique_ptr<Compiled> compiled)
    : options_(options), compiled_(std::move(compiled)) {}
SplitPattern::~SplitPattern() = default;

absl::StatusOr<std::unique_ptr<SplitPattern>> SplitPattern::compile(const std::string& pattern,
                                                                    const Options& options) {
  std::string translated;
  if (options.pcre2) {
    translated = pattern;
  } else if (options.literal) {
    if (pattern.find("\\E") != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("split string \"", pattern, "\": \"\\E\" inside is not supported"));
    }
    translated = quote(pattern);
  } else {
    TITAN_ASSIGN_OR_RETURN(translated, translate_pattern(pattern));
  }
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // '.' does not match a line feed.
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP, &code, &offset, context);
  pcre2_compile_context_free(context);
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("split pattern \"", pattern, "\": ", message(code)));
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  compiled->match = pcre2_match_data_create_from_pattern(compiled->code, nullptr);
  compiled->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled->context, UINT32_MAX);  // A run of a million spaces is slow, not an error.
  compiled->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);
  pcre2_jit_stack_assign(compiled->context, nullptr, compiled->stack);
  return std::unique_ptr<SplitPattern>(new SplitPattern(options, std::move(compiled)));
}

absl::Status SplitPattern::split(std::string_view text,
                                 const std::function<absl::Status(std::string_view)>& piece) const {
  const bool keep_matches = options_.behavior == Behavior::kIsolated || options_.invert;
  const bool keep_between = options_.behavior == Behavior::kIsolated || !options_.invert;
  return parts(text, [&](std::string_view part, bool matched) {
    return (matched ? keep_matches : keep_between) ? piece(part) : absl::OkStatus();
  });
}

absl::Status SplitPattern::parts(std::string_view text,
                                 const std::function<absl::Status(std::string_view, bool)>& part) const {
  size_t done = 0, search = 0;
  while (search <= text.size()) {
    const int found = compiled_->find(text, search);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return absl::InternalError(absl::StrCat("split pattern failed on a text: ", message(found)));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(compiled_->match);
    const size_t begin = bounds[0], end = bounds[1];
    if (begin > done) TITAN_RETURN_IF_ERROR(part(text.substr(done, begin - done), false));
    if (end > begin) TITAN_RETURN_IF_ERROR(part(text.substr(begin, end - begin), true));
    done = end;
    search = end > begin ? end : next_character(text, end);
  }
  return done < text.size() ? part(text.substr(done), false) : absl::OkStatus();
}

}  // namespace titan::data
