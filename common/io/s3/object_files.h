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

// The objects of a bucket as files; paths are "s3://BUCKET/KEY" of this bucket. Folders are what names have in common,
// so that they need not be made. There are no locks, no renaming and no times: object_fence.h decides who may write.
class ObjectFiles : public storage::Files, public storage::WholeWriter {
 public:
  ObjectFiles(std::shared_ptr<Client> client, const TransferSizes& sizes)
      : client_(client), sizes_(sizes), blocks_(std::make_shared<BlockCache>(std::move(client), sizes)) {}

  // AlreadyExists comes when it is synced.
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
  // False also when the store does not answer: what must be known asks list() or open().
  bool exists(const std::string& path) override;
  bool is_folder(const std::string& path) override;

  // Nobody is kept from deleting what is read: who reads it gets an error then.
  absl::StatusOr<std::unique_ptr<storage::FileLock>> try_lock(const std::string& path, storage::LockMode mode) override;

  // Unimplemented.
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> append_to(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status truncate(const std::string& path, int64_t bytes) override;
  absl::StatusOr<absl::Time> touch(const std::string& path) override;
  absl::StatusOr<absl::Time> modified(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string& path, storage::LockMode mode,
                                                          absl::Duration patience) override;

  const std::shared_ptr<Client>& client() const { return client_; }

 private:
  absl::StatusOr<std::string> key_of(const std::string& path) const;
  absl::StatusOr<Facts> look(const std::string& key);

  const std::shared_ptr<Client> client_;
  const TransferSizes sizes_;
  const std::shared_ptr<BlockCache> blocks_;
};

// Files of the machine and objects of stores: paths that begin "s3://" are objects, all others files. A store is asked
// as the process's environment says (settings.h), from the first path of its on; what the environment lacks is the
// error of every operation. Never destroyed.
storage::Files& all_files();

// The bucket that all_files() asks for that path.
absl::StatusOr<std::shared_ptr<Client>> client_of(const std::string& path);

}  // namespace titan::s3
