#include "common/io/s3/all_files.h"

#include <map>
#include <utility>

#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/large_writer.h"

namespace titan::s3 {
namespace {

using storage::FileLock;
using storage::Files;
using storage::LockMode;
using storage::ReadableFile;
using storage::WritableFile;

class Buckets {
 public:
  absl::StatusOr<ObjectFiles*> files_of(const std::string& path) {
    TITAN_ASSIGN_OR_RETURN(const Location location, parse_location(path));
    sync::Lock lock(mutex_);
    std::unique_ptr<ObjectFiles>& bucket = buckets_[location.bucket];
    if (bucket == nullptr) {
      const http::Environment environment = http::process_environment();
      absl::StatusOr<Settings> settings = settings_from(environment);
      if (!settings.ok()) return annotate(settings.status(), path);
      auto client = Client::open(*settings, location.bucket, [environment] { return credentials_from(environment); });
      if (!client.ok()) return annotate(client.status(), path);
      bucket = std::make_unique<ObjectFiles>(*std::move(client), TransferSizes{});
    }
    return bucket.get();
  }

 private:
  sync::Mutex mutex_;
  std::map<std::string, std::unique_ptr<ObjectFiles>> buckets_ TITAN_GUARDED_BY(mutex_);
};

Buckets& buckets() {
  static auto* all = new Buckets;
  return *all;
}

class AllFiles : public Files, public storage::WholeWriter, public storage::LargeWriter {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->create(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create_large(const std::string& path, int64_t bytes) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return storage::create_large(*files, path, bytes);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> append_to(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->append_to(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->open(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> open_no_link(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->open_no_link(path);
  }
  bool writes_whole(const std::string& path) const override { return is_location(path); }
  absl::Status write_whole(const std::string& path, std::string_view bytes) override {
    TITAN_ASSIGN_OR_RETURN(ObjectFiles * files, buckets().files_of(path));
    return files->write_whole(path, bytes);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(is_location(to) ? to : from));
    return files->rename(from, to);
  }
  absl::Status truncate(const std::string& path, int64_t bytes) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->truncate(path, bytes);
  }
  absl::Status remove(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->remove(path);
  }
  absl::Status remove_folder(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->remove_folder(path);
  }
  absl::Status make_folders(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->make_folders(path);
  }
  absl::Status sync_folder(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->sync_folder(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(folder));
    return files->list(folder);
  }
  bool exists(const std::string& path) override {
    const absl::StatusOr<Files*> files = of(path);
    return files.ok() && (*files)->exists(path);
  }
  bool is_folder(const std::string& path) override {
    const absl::StatusOr<Files*> files = of(path);
    return files.ok() && (*files)->is_folder(path);
  }
  absl::StatusOr<absl::Time> touch(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->touch(path);
  }
  absl::StatusOr<absl::Time> modified(const std::string& path) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->modified(path);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path, LockMode mode,
                                                 absl::Duration patience) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->lock(path, mode, patience);
  }
  absl::StatusOr<std::unique_ptr<FileLock>> try_lock(const std::string& path, LockMode mode) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->try_lock(path, mode);
  }

 private:
  static absl::StatusOr<Files*> of(const std::string& path) {
    if (!is_location(path)) return &storage::posix_files();
    TITAN_ASSIGN_OR_RETURN(ObjectFiles * files, buckets().files_of(path));
    return files;
  }
};

}  // namespace

storage::Files& all_files() {
  static auto* files = new AllFiles;
  return *files;
}

absl::StatusOr<std::shared_ptr<Client>> client_of(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(ObjectFiles * files, buckets().files_of(path));
  return files->client();
}

}  // namespace titan::s3
