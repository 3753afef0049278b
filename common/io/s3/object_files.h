#pragma once

// Presents the objects of a bucket as files, for checkpoints, and picks the store or the local disk by a path's form.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/s3/client.h"
#include "common/io/s3/object_reader.h"
#include "common/io/s3/upload_file.h"
#include "common/io/storage/file.h"

namespace titan::s3 {

// Presents the objects of a bucket as files; paths are "s3://BUCKET/KEY" of this bucket. Folders are common prefixes of
// names, so they need not be made. It has no locks, renames or times: object_fence.h decides who may write.
class ObjectFiles : public storage::Files, public storage::WholeWriter {
 public:
  ObjectFiles(std::shared_ptr<S3Client> client, const TransferSizes& sizes)
      : client_(client), sizes_(sizes), blocks_(std::make_shared<BlockCache>(std::move(client), sizes)) {}

  // The file's sync() returns AlreadyExists for an existing object.
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open_no_link(const std::string& path) override {
    return open(path);
  }
  bool writes_whole(const std::string&) const override { return true; }
  absl::Status write_whole(const std::string& path, std::string_view bytes) override;

  absl::Status remove(const std::string& path) override;
  absl::Status remove_folder(const std::string& path) override;
  absl::Status make_folders(const std::string&) override { return absl::OkStatus(); }
  absl::Status sync_folder(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override;
  // Returns false also when the store does not answer. Use list() or open() where the answer matters.
  bool exists(const std::string& path) override;
  bool is_folder(const std::string& path) override;

  // Locks nothing, so it does not prevent deletion: readers of a deleted object get an error.
  absl::StatusOr<std::unique_ptr<storage::FileLock>> try_lock(const std::string& path, storage::LockMode mode) override;

  // The calls below are Unimplemented.
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> append_to(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status truncate(const std::string& path, int64_t bytes) override;
  absl::StatusOr<absl::Time> touch(const std::string& path) override;
  absl::StatusOr<absl::Time> modified(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string& path, storage::LockMode mode,
                                                          absl::Duration timeout) override;

  const std::shared_ptr<S3Client>& client() const { return client_; }

 private:
  absl::StatusOr<std::string> key_of(const std::string& path) const;
  absl::StatusOr<Facts> look(const std::string& key);

  const std::shared_ptr<S3Client> client_;
  const TransferSizes sizes_;
  const std::shared_ptr<BlockCache> blocks_;
};

// Returns the local files and the objects of stores: paths that begin with "s3://" are objects, all others are files. A
// store is configured from the process's environment (settings.h) when its first path is used. If the environment is
// incomplete, every operation on such a path fails with that error. Never destroyed.
storage::Files& all_files();

// Returns the client of the bucket that all_files() uses for this path.
absl::StatusOr<std::shared_ptr<S3Client>> client_of(const std::string& path);

}  // namespace titan::s3
