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

// A new file. Nothing is durable before sync(). Destruction closes without a report; call close() to see errors.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status append(std::string_view bytes) = 0;  // All of it, or an error (ResourceExhausted: disk full).
  virtual absl::Status sync() = 0;  // After an error the file must be given up, never synced again.
  virtual absl::Status close() = 0;
};

// An existing file, for positional reads. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;  // When it was opened.
  // Fills `out` from `offset`. DataLoss when the file ends before.
  virtual absl::Status read(int64_t offset, int64_t bytes, char* out) = 0;
};

// An advisory lock held until destruction; the kernel drops it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class LockMode { kShared, kExclusive };

// Every error names the operation and the path. All methods are thread-safe.
class Files {
 public:
  virtual ~Files() = default;

  // A file that did not exist: AlreadyExists otherwise, so that no writer ever touches another's file.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  // Opens for append, creating it when missing; a torn last line (no newline) is left to the caller.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> append_to(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  // The same, but the last name in the path must not be a symbolic link: what identifies a folder lies in it.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> open_no_link(const std::string& path) = 0;

  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;  // Replaces `to` atomically.
  virtual absl::Status truncate(const std::string& path, int64_t bytes) = 0;
  virtual absl::Status remove(const std::string& path) = 0;         // A file; NotFound when absent.
  virtual absl::Status remove_folder(const std::string& path) = 0;  // With everything in it; absent is fine.
  virtual absl::Status make_folders(const std::string& path) = 0;   // With its parents; existing is fine.
  virtual absl::Status sync_folder(const std::string& path) = 0;    // Makes names in it durable.

  virtual absl::StatusOr<std::vector<std::string>> list(
      const std::string& folder) = 0;  // Names, sorted; NotFound when absent.
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_folder(const std::string& path) = 0;

  // Sets the file's time to now, creating it when missing, and gives that time. "Now" is the file system's own clock,
  // so that times of two files there can be compared whatever the clocks of the machines say. Never follows a link.
  virtual absl::StatusOr<absl::Time> touch(const std::string& path) = 0;
  // The time of the last change, as fresh as opening the file makes it: a network file system may answer a plain stat
  // with what it knew a minute ago.
  virtual absl::StatusOr<absl::Time> modified(const std::string& path) = 0;

  // Waits for the lock on `path`, creating the file when missing. Unavailable after `patience`.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path, LockMode mode,
                                                         absl::Duration patience) = 0;
  // Unavailable when someone else holds it; NotFound when the file is missing.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> try_lock(const std::string& path, LockMode mode) = 0;
};

// Files that know a faster way to write a new file of many bytes than one write after the other. create_large() asks
// for it.
class LargeWriter {
 public:
  virtual ~LargeWriter() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> create_large(const std::string& path, int64_t bytes) = 0;
};

// Files that replace a whole one in a single step by themselves, where others need a temporary one and a rename.
// atomic_write() asks for it.
class WholeWriter {
 public:
  virtual ~WholeWriter() = default;
  // Whether it does so for this path.
  virtual bool writes_whole(const std::string& path) const = 0;
  virtual absl::Status write_whole(const std::string& path, std::string_view bytes) = 0;
};

// The machine's file system. Never destroyed.
Files& posix_files();

// The whole file; DataLoss beyond `max_bytes` (a guard against nonsense, not a quota).
absl::StatusOr<std::string> read_file(Files& files, const std::string& path, int64_t max_bytes = int64_t{1} << 32);

// Replaces `path` by `bytes` so that readers and a crash see the old or the new content, whole: temporary file in the
// same folder, fsync, rename, fsync of the folder.
absl::Status atomic_write(Files& files, const std::string& path, std::string_view bytes);

// "a/b" from "a" and "b"; an absolute `name` wins.
std::string join_path(std::string_view folder, std::string_view name);

// As Files::create(), of a file that is going to have about `bytes`. What was appended may be seen by readers no sooner
// than sync() returns, and an error of writing it may be told by a later call, by sync() at the latest.
absl::StatusOr<std::unique_ptr<WritableFile>> create_large(Files& files, const std::string& path, int64_t bytes);

}  // namespace titan::storage
