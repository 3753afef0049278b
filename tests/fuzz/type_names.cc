// The only function that LibTorch's headers of types call, defined here without LibTorch.

#include <c10/util/Exception.h>

#include "tests/fuzz/target.h"

namespace c10::detail {

void torchCheckFail(const char* /*function*/, const char* /*file*/, uint32_t /*line*/, const char* message) {
  titan::fuzz::require(false, message);
  __builtin_unreachable();
}

}  // namespace c10::detail
