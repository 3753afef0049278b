#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data {

// Cuts text into pieces as the Split pre-tokenizer of the `tokenizers` package does, with PCRE2 instead of Oniguruma.
// Not thread safe: use one per thread.
class SplitPattern {
 public:
  enum class Behavior {
    kIsolated,  // Matches and the text between them are pieces.
    kRemoved,   // Only the text between matches is.
  };
  struct Options {
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;   // Matches and the text between them swap roles.
    bool literal = false;  // `pattern` is plain text.
    bool pcre2 = false;    // `pattern` is in PCRE2's syntax.
  };

  // `pattern` is in Oniguruma's syntax unless `options` say otherwise. Errors: InvalidArgument, names a construct that
  // the two engines read differently.
  static absl::StatusOr<std::unique_ptr<SplitPattern>> compile(const std::string& pattern, const Options& options);
  ~SplitPattern();
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

  // Calls `piece` with every piece of `text` (valid UTF-8), in order; stops at its first error.
  absl::Status split(std::string_view text, const std::function<absl::Status(std::string_view)>& piece) const;

  // Calls `part` with each match and each stretch between matches (`matched` is false), in order. No part is empty.
  absl::Status parts(std::string_view text,
                     const std::function<absl::Status(std::string_view, bool matched)>& part) const;

 private:
  struct Compiled;
  SplitPattern(const Options& options, std::unique_ptr<Compiled> compiled);

  Options options_;
  std::unique_ptr<Compiled> compiled_;
};

// Translates a pattern for PCRE2: categories include the characters of newer Unicode versions, \s becomes White_Space.
absl::StatusOr<std::string> translate_pattern(const std::string& pattern);

}  // namespace titan::data
