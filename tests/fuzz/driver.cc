// libFuzzer's entry point: fuzz_readers --target=NAME [libFuzzer's flags] [corpus folders...]. Without a name it lists
// its targets.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/target.h"

namespace {

const titan::fuzz::Target* chosen = nullptr;

constexpr char kFlag[] = "--target=";

}  // namespace

extern "C" int LLVMFuzzerInitialize(const int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp((*argv)[i], kFlag, sizeof kFlag - 1) != 0) continue;
    for (const auto& target : titan::fuzz::targets()) {
      if (std::strcmp(target.name, (*argv)[i] + sizeof kFlag - 1) == 0) chosen = &target;
    }
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "choose with %sNAME one of\n", kFlag);
  for (const auto& target : titan::fuzz::targets()) std::fprintf(stderr, "  %s\n", target.name);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
