#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/io/storage/file.h"

namespace titan::storage {

// A call on a file system, before it happens.
struct FileOperation {
  enum class Kind {
    kCreate,
    kAppend,
    kSync,
    kClose,
    kOpen,
    kRead,
    kRename,
    kTruncate,
    kRemove,
    kRemoveFolder,
    kMakeFolders,
    kSyncFolder,
    kList,
    kLock,
    kTouch
  };
  Kind kind;
  std::string path;   // The target of a rename.
  int64_t bytes = 0;  // For kAppend and kRead.
};
const char* name(FileOperation::Kind kind);

// A failure that a test injects into an operation.
struct Fault {
  absl::Status status;        // Returned when not OK.
  int64_t partial_bytes = 0;  // kAppend only: written before the error, like a disk that fills up.
};

// Passes everything through to `base` and calls `hook` before each operation except exists() and is_folder(). The hook
// may sleep or block (a slow disk), return a fault (full, failing, short), count, or end the process (a crash at that
// point). It is called from many threads.
class FaultyFiles : public Files {
 public:
  using Hook = std::function<Fault(const FileOperation&)>;
  explicit FaultyFiles(Hook hook, Files& base = posix_files()) : hook_(std::move(hook)), base_(base) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> append_to(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open_no_link(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status truncate(const std::string& path, int64_t bytes) override;
  absl::Status remove(const std::string& path) override;
  absl::Status remove_folder(const std::string& path) override;
  absl::Status make_folders(const std::string& path) override;
  absl::Status sync_folder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override;
  bool exists(const std::string& path) override { return base_.exists(path); }
  bool is_folder(const std::string& path) override { return base_.is_folder(path); }
  absl::StatusOr<absl::Time> touch(const std::string& path) override;
  absl::StatusOr<absl::Time> modified(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path, LockMode mode,
                                                 absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<FileLock>> try_lock(const std::string& path, LockMode mode) override;

 private:
  absl::Status ask(FileOperation::Kind kind, const std::string& path, int64_t bytes = 0) const;

  Hook hook_;
  Files& base_;
};

}  // namespace titan::storage
