#include "tests/fuzz/target.h"

#include <cstdio>
#include <cstdlib>

namespace titan::fuzz {

std::vector<Target>& targets() {
  static auto* const all = new std::vector<Target>();
  return *all;
}

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace titan::fuzz
