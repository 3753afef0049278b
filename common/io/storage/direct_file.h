#pragma once

// Writes new files past the page cache: data that is written once and not read again soon should not evict other data,
// nor wait for the kernel's writeback.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::storage {

// Smaller files are not worth the buffers.
inline constexpr int64_t kLargeBytes = int64_t{16} << 20;
// A writer's memory: some buffers being written and one being filled.
inline constexpr int64_t kDirectBufferBytes = int64_t{4} << 20;
inline constexpr int kDirectBuffers = 5;

// Returns a writer of the empty file `fd`, which it owns. It writes several buffers at once with O_DIRECT. A tail that
// is not a whole block goes through the page cache, as does everything once the file system refuses O_DIRECT. Space for
// `bytes` is allocated first, so that a full disk is reported before anything is written. Returns null, and `fd` stays
// the caller's, when the file system is not a local disk's (ext4, XFS) or does not support O_DIRECT. An error closes
// `fd`.
absl::StatusOr<std::unique_ptr<WritableFile>> write_directly(int fd, const std::string& path, int64_t bytes);

}  // namespace titan::storage
