#pragma once

// Fuzz targets: functions of untrusted bytes. The same functions run under libFuzzer (driver.cc), and over their
// corpora and mutations of these in every build (replay.cc). See docs/contributing/fuzzing.md.

#include <string_view>
#include <vector>

namespace titan::fuzz {

struct Target {
  const char* name;  // Also the name of its folder in corpus/.
  // Must return for any bytes; errors are found by a sanitizer, by require(), or by the time limit.
  void (*run)(std::string_view bytes);
  int mutations;  // Mutations of its corpus per replay: about half a second.
};

std::vector<Target>& targets();

struct Registration {
  explicit Registration(const Target& target) { targets().push_back(target); }
};

// Ends the process with `what` on stderr unless `holds`.
void require(bool holds, std::string_view what);

}  // namespace titan::fuzz

// Defines a target: TITAN_FUZZ(name, mutations) { body that reads `bytes` }
#define TITAN_FUZZ(name, mutations)                                                                 \
  static void fuzz_##name(std::string_view bytes);                                                  \
  static const ::titan::fuzz::Registration registration_of_##name({#name, fuzz_##name, mutations}); \
  static void fuzz_##name([[maybe_unused]] std::string_view bytes)
