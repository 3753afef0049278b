#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data_files {

// Decompresses what comes in parts, all members or frames of it.
class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // Of a file whose name ends with .gz or .zst. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Decompressor>> of(const std::string& path);

  // Fills `out` with up to `size` bytes, at least one; 0 when all of `input` is used and all that it comes to was
  // given. Removes from `input` what it used. Errors: InvalidArgument for damaged data (names the file).
  virtual absl::StatusOr<size_t> decompress(std::string_view& input, char* out, size_t size) = 0;

  // When no more input follows. Errors: InvalidArgument when the data is cut short.
  virtual absl::Status at_end() const = 0;

  // The same again, once all of an input was used; null for a format that cannot.
  virtual std::unique_ptr<Decompressor> copy() const { return nullptr; }
};

// Whose they are: other versions may give the same bytes in other parts.
std::string decompressor_versions();

}  // namespace titan::data_files
