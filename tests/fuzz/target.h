#pragma once

// What is fuzzed: functions of bytes that nobody trusts. The same functions run under libFuzzer (driver.cc), and over
// their corpora and mutations of these in every build (replay.cc). See docs/contributing/fuzzing.md.

#include <string_view>
#include <vector>

namespace titan::fuzz {

struct Target {
  const char* name;  // Of its folder below corpus/, too.
  // Must return whatever the bytes are: what they break is found by a sanitizer, by require(), or by the clock.
  void (*run)(std::string_view bytes);
  int mutations;  // That the replay makes of its corpus: about half a second of them.
};

std::vector<Target>& targets();

struct Registration {
  explicit Registration(const Target& target) { targets().push_back(target); }
};

// Ends the process, with `what` on stderr, unless it holds.
void require(bool holds, std::string_view what);

}  // namespace titan::fuzz

// TITAN_FUZZ(name, mutations) { body that reads `bytes` }
#define TITAN_FUZZ(name, mutations)                                                                 \
  static void fuzz_##name(std::string_view bytes);                                                  \
  static const ::titan::fuzz::Registration registration_of_##name({#name, fuzz_##name, mutations}); \
  static void fuzz_##name([[maybe_unused]] std::string_view bytes)
