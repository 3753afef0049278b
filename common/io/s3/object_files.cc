#include "common/io/s3/object_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/s3/location.h"
#include "common/io/s3/tombstone.h"
#include "common/io/storage/file.h"

namespace titan::s3 {
namespace {

using storage::FileLock;
using storage::ReadableFile;
using storage::WritableFile;

class NoLock : public FileLock {};

absl::Status no_such(const char* operation, const std::string& path) {
  return absl::UnimplementedError(
      absl::StrCat(operation, " ", path, ": an object store cannot do this; name a folder of a file system"));
}

std::string below(const std::string& key) { return key.empty() ? "" : key + "/"; }

}  // namespace

absl::StatusOr<std::string> ObjectFiles::key_of(const std::string& path) const {
  TITAN_ASSIGN_OR_RETURN(Location location, parse_location(path));
  if (location.bucket == client_->bucket()) return std::move(location.key);
  return absl::InternalError(absl::StrCat(path, " was requested from the bucket ", client_->bucket()));
}

// Returns the facts of an object; NotFound for a mark (tombstone.h).
absl::StatusOr<Facts> ObjectFiles::look(const std::string& key) {
  TITAN_ASSIGN_OR_RETURN(const Facts facts, client_->head(key));
  TITAN_ASSIGN_OR_RETURN(const bool gone, is_tombstone(*client_, key, facts.size));
  if (gone) return absl::NotFoundError(absl::StrCat("look at ", client_->place(key), ": it was removed"));
  return facts;
}

absl::StatusOr<std::unique_ptr<WritableFile>> ObjectFiles::create(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(std::string key, key_of(path));
  return std::make_unique<UploadFile>(client_, std::move(key), sizes_);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> ObjectFiles::open(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(std::string key, key_of(path));
  TITAN_ASSIGN_OR_RETURN(const Facts facts, look(key));
  return std::make_unique<ObjectReader>(blocks_, std::move(key), facts);
}

absl::Status ObjectFiles::write_whole(const std::string& path, std::string_view bytes) {
  TITAN_ASSIGN_OR_RETURN(const std::string key, key_of(path));
  return client_->put(key, std::string(bytes), {}).status();
}

absl::Status ObjectFiles::remove(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string key, key_of(path));
  return client_->remove(key);
}

absl::Status ObjectFiles::remove_folder(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string key, key_of(path));
  TITAN_ASSIGN_OR_RETURN(const Listing all, client_->list(below(key), /*deep=*/true));
  for (const Object& object : all.objects) TITAN_RETURN_IF_ERROR(client_->remove(object.key));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ObjectFiles::list(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::string key, key_of(folder));
  const std::string prefix = below(key);
  TITAN_ASSIGN_OR_RETURN(const Listing all, client_->list(prefix, /*deep=*/false));
  if (all.objects.empty() && all.folders.empty())
    return absl::NotFoundError(absl::StrCat("list ", folder, ": there is nothing below that name"));
  std::vector<std::string> names;
  for (const std::string& one : all.folders) names.push_back(one.substr(prefix.size()));
  for (const Object& object : all.objects) {
    TITAN_ASSIGN_OR_RETURN(const bool gone, is_tombstone(*client_, object.key, object.size));
    // Skips the folder itself, for which some tools make an object.
    if (!gone && object.key != prefix) names.push_back(object.key.substr(prefix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool ObjectFiles::exists(const std::string& path) {
  const absl::StatusOr<std::string> key = key_of(path);
  return key.ok() && !key->empty() && look(*key).ok();
}

bool ObjectFiles::is_folder(const std::string& path) {
  const absl::StatusOr<std::string> key = key_of(path);
  return key.ok() && client_->any(below(*key)).value_or(false);
}

absl::StatusOr<std::unique_ptr<FileLock>> ObjectFiles::try_lock(const std::string&, storage::LockMode) {
  return std::make_unique<NoLock>();
}

absl::StatusOr<std::unique_ptr<WritableFile>> ObjectFiles::append_to(const std::string& path) {
  return no_such("append to", path);
}
absl::Status ObjectFiles::rename(const std::string& from, const std::string&) { return no_such("rename", from); }
absl::Status ObjectFiles::truncate(const std::string& path, int64_t) { return no_such("truncate", path); }
absl::StatusOr<absl::Time> ObjectFiles::touch(const std::string& path) { return no_such("touch", path); }
absl::StatusOr<absl::Time> ObjectFiles::modified(const std::string& path) { return no_such("read the time of", path); }
absl::StatusOr<std::unique_ptr<FileLock>> ObjectFiles::lock(const std::string& path, storage::LockMode,
                                                            absl::Duration) {
  return no_such("lock", path);
}

namespace {

using storage::Files;
using storage::LockMode;

class Buckets {
 public:
  absl::StatusOr<ObjectFiles*> files_of(const std::string& path) {
    TITAN_ASSIGN_OR_RETURN(const Location location, parse_location(path));
    sync::Lock lock(mutex_);
    std::unique_ptr<ObjectFiles>& bucket = buckets_[location.bucket];
    if (bucket == nullptr) {
      const http::Environment environment = http::process_environment();
      absl::StatusOr<S3Settings> settings = settings_from(environment);
      if (!settings.ok()) return annotate(settings.status(), path);
      auto client = S3Client::open(*settings, location.bucket, [environment] { return credentials_from(environment); });
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
                                                 absl::Duration timeout) override {
    TITAN_ASSIGN_OR_RETURN(Files * files, of(path));
    return files->lock(path, mode, timeout);
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

absl::StatusOr<std::shared_ptr<S3Client>> client_of(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(ObjectFiles * files, buckets().files_of(path));
  return files->client();
}

}  // namespace titan::s3
