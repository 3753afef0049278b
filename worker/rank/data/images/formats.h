#pragma once

// The decoders of the single formats, and what they share.

#include <csetjmp>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/images/image.h"

namespace titan::images {

absl::StatusOr<Image> decode_jpeg(std::string_view bytes, int64_t max_pixels);
absl::StatusOr<Image> decode_png(std::string_view bytes, int64_t max_pixels);
absl::StatusOr<Image> decode_webp(std::string_view bytes, int64_t max_pixels);

// Returns InvalidArgument unless the size is within the limit.
absl::Status check_size(const char* format, int64_t width, int64_t height, int64_t max_pixels);

// Where libjpeg and libpng jump to after an error, and what it was.
struct ErrorJump {
  std::jmp_buf target;
  char message[256] = "";
};

// Calls `call`, which calls C functions whose error handlers jump to `jump.target`. Returns whether there was no error.
// `call` must not own anything that has a destructor, because the jump skips it.
template <typename Call>
[[gnu::noinline]] bool returns_without_error(ErrorJump& jump, const Call& call) {
  if (setjmp(jump.target) != 0) return false;  // NOLINT(cert-err52-cpp): libjpeg and libpng know no other way.
  call();
  return true;
}

}  // namespace titan::images
