#pragma once

// New files past the page cache: what is written once and not read again soon should not push out what is, nor wait for
// the kernel to get round to it.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// Below it a file is not worth the buffers.
inline constexpr int64_t kLargeBytes = int64_t{16} << 20;
// A writer's memory: some buffers under way and one that is being filled.
inline constexpr int64_t kDirectBufferBytes = int64_t{4} << 20;
inline constexpr int kDirectBuffers = 5;

// Writes the empty file `fd`, which it owns, by O_DIRECT in several places at once; a tail that is no whole block, and
// all of it once the file system refuses, goes through the page cache. Room for `bytes` is taken at once, so that a
// disk without it says so before anything is written. Null, and `fd` stays the caller's, where the file system is not
// one of a local disk (ext4, XFS) or does not know O_DIRECT.
absl::StatusOr<std::unique_ptr<WritableFile>> write_directly(int fd, const std::string& path, int64_t bytes);

}  // namespace titan::storage
