#include "common/io/s3/object_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/s3/gone.h"
#include "common/io/s3/location.h"

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
  return absl::InternalError(absl::StrCat(path, " is asked of the bucket ", client_->bucket()));
}

// What is there for readers.
absl::StatusOr<Facts> ObjectFiles::look(const std::string& key) {
  TITAN_ASSIGN_OR_RETURN(const Facts facts, client_->head(key));
  TITAN_ASSIGN_OR_RETURN(const bool gone, is_gone(*client_, key, facts.size));
  if (gone) return absl::NotFoundError(absl::StrCat("look at ", client_->place(key), ": it was taken away"));
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
    TITAN_ASSIGN_OR_RETURN(const bool gone, is_gone(*client_, object.key, object.size));
    // The folder itself, where a tool made an object to show it.
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
absl::StatusOr<absl::Time> ObjectFiles::modified(const std::string& path) {
  return no_such("ask for the time of", path);
}
absl::StatusOr<std::unique_ptr<FileLock>> ObjectFiles::lock(const std::string& path, storage::LockMode,
                                                            absl::Duration) {
  return no_such("lock", path);
}

}  // namespace titan::s3
