#pragma once

// Defines the interface through which files are used: POSIX files (here), objects of a store (common/io/s3), and slow,
// full or failing files in tests (faulty_files.h).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::storage {

// A new file. Nothing is durable before sync(). The destructor closes without reporting errors; call close() to see
// them.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status append(std::string_view bytes) = 0;  // Writes all, or fails (ResourceExhausted: disk full).
  virtual absl::Status sync() = 0;  // After an error the file must be abandoned, never synced again.
  virtual absl::Status close() = 0;
};

// An existing file, for positional reads. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;  // When it was opened.
  // Fills `out` with `bytes` bytes from `offset`. DataLoss when the file ends before.
  virtual absl::Status read(int64_t offset, int64_t bytes, char* out) = 0;
};

// An advisory lock held until destruction; the kernel releases it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class LockMode { kShared, kExclusive };

// Every error names the operation and the path. All methods are thread-safe.
class Files {
 public:
  virtual ~Files() = default;

  // Creates a new file. AlreadyExists when there is one, so that no writer ever touches another's file.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  // Opens for append, creating it when missing. A torn last line (no newline) is left to the caller.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> append_to(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  // Same as open(), but the last name in the path must not be a symbolic link. For files that identify their folder.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open_no_link(const std::string& path) = 0;

  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;  // Replaces `to` atomically.
  virtual absl::Status truncate(const std::string& path, int64_t bytes) = 0;
  virtual absl::Status remove(const std::string& path) = 0;         // A file; NotFound when absent.
  virtual absl::Status remove_folder(const std::string& path) = 0;  // Recursive; OK when absent.
  virtual absl::Status make_folders(const std::string& path) = 0;   // With its parents; OK when it exists.
  virtual absl::Status sync_folder(const std::string& path) = 0;    // Makes the names in it durable.

  virtual absl::StatusOr<std::vector<std::string>> list(
      const std::string& folder) = 0;  // Sorted names; NotFound when absent.
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_folder(const std::string& path) = 0;

  // Sets the file's time to now, creating it when missing, and returns that time. "Now" is by the file system's own
  // clock, so that times of two files there can be compared whatever the machines' clocks say. Never follows a link.
  virtual absl::StatusOr<absl::Time> touch(const std::string& path) = 0;
  // Returns the time of the last change, as fresh as opening the file makes it: a network file system may answer a
  // plain stat with a value that is a minute old.
  virtual absl::StatusOr<absl::Time> modified(const std::string& path) = 0;

  // Waits for the lock on `path`, creating the file when missing. Unavailable after `timeout`.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path, LockMode mode,
                                                         absl::Duration timeout) = 0;
  // Takes the lock without waiting. Unavailable when another holder has it; NotFound when the file is missing.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> try_lock(const std::string& path, LockMode mode) = 0;
};

// Files that write a new large file faster than with sequential writes. create_large() uses it.
class LargeWriter {
 public:
  virtual ~LargeWriter() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create_large(const std::string& path, int64_t bytes) = 0;
};

// Files that replace a whole file atomically by themselves, where others need a temporary file and a rename.
// atomic_write() uses it.
class WholeWriter {
 public:
  virtual ~WholeWriter() = default;
  // Returns whether it does so for this path.
  virtual bool writes_whole(const std::string& path) const = 0;
  virtual absl::Status write_whole(const std::string& path, std::string_view bytes) = 0;
};

// Returns the machine's file system. Never destroyed.
Files& posix_files();

// Returns the whole file. DataLoss beyond `max_bytes`, which only guards against absurd sizes.
absl::StatusOr<std::string> read_file(Files& files, const std::string& path, int64_t max_bytes = int64_t{1} << 32);

// Replaces `path` by `bytes` atomically: readers, also after a crash, see the whole old or new content. Uses a
// WholeWriter if `files` is one; otherwise writes a temporary file in the same folder, then fsync, rename, and fsync of
// the folder.
absl::Status atomic_write(Files& files, const std::string& path, std::string_view bytes);

// Returns "a/b" for "a" and "b"; `name` alone if it is absolute or a URL.
std::string join_path(std::string_view folder, std::string_view name);

// Same as Files::create(), for a file of about `bytes`. Readers may not see what was appended before sync() returns. A
// later call may report a write error, at the latest sync().
absl::StatusOr<std::unique_ptr<WritableFile>> create_large(Files& files, const std::string& path, int64_t bytes);

}  // namespace titan::storage
