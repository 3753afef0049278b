#include "common/io/storage/faulty_files.h"

#include <algorithm>

#include "common/base/status/status.h"

namespace titan::storage {
namespace {

using Kind = FileOperation::Kind;

class FaultyWritableFile : public WritableFile {
 public:
  FaultyWritableFile(std::unique_ptr<WritableFile> base, std::string path, const FaultyFiles::Hook& hook)
      : base_(std::move(base)), path_(std::move(path)), hook_(hook) {}

  absl::Status append(std::string_view bytes) override {
    const Fault fault = hook_({Kind::kAppend, path_, static_cast<int64_t>(bytes.size())});
    if (fault.status.ok()) return base_->append(bytes);
    TITAN_RETURN_IF_ERROR(base_->append(bytes.substr(0, std::min<size_t>(bytes.size(), fault.partial_bytes))));
    return fault.status;
  }

  absl::Status sync() override {
    TITAN_RETURN_IF_ERROR(hook_({Kind::kSync, path_}).status);
    return base_->sync();
  }

  absl::Status close() override {
    absl::Status fault = hook_({Kind::kClose, path_}).status;
    absl::Status closed = base_->close();
    return fault.ok() ? closed : fault;
  }

 private:
  std::unique_ptr<WritableFile> base_;
  std::string path_;
  const FaultyFiles::Hook& hook_;
};

class FaultyReadableFile : public ReadableFile {
 public:
  FaultyReadableFile(std::unique_ptr<ReadableFile> base, std::string path, const FaultyFiles::Hook& hook)
      : base_(std::move(base)), path_(std::move(path)), hook_(hook) {}

  int64_t size() const override { return base_->size(); }

  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    TITAN_RETURN_IF_ERROR(hook_({Kind::kRead, path_, bytes}).status);
    return base_->read(offset, bytes, out);
  }

 private:
  std::unique_ptr<ReadableFile> base_;
  std::string path_;
  const FaultyFiles::Hook& hook_;
};

}  // namespace

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kCreate:
      return "create";
    case Kind::kAppend:
      return "append";
    case Kind::kSync:
      return "sync";
    case Kind::kClose:
      return "close";
    case Kind::kOpen:
      return "open";
    case Kind::kRead:
      return "read";
    case Kind::kRename:
      return "rename";
    case Kind::kTruncate:
      return "truncate";
    case Kind::kRemove:
      return "remove";
    case Kind::kRemoveFolder:
      return "remove_folder";
    case Kind::kMakeFolders:
      return "make_folders";
    case Kind::kSyncFolder:
      return "sync_folder";
    case Kind::kList:
      return "list";
    case Kind::kLock:
      return "lock";
    case Kind::kTouch:
      return "touch";
  }
  return "unknown";
}

absl::Status FaultyFiles::ask(Kind kind, const std::string& path, int64_t bytes) const {
  return hook_({kind, path, bytes}).status;
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFiles::create(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kCreate, path));
  TITAN_ASSIGN_OR_RETURN(auto file, base_.create(path));
  return std::make_unique<FaultyWritableFile>(std::move(file), path, hook_);
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultyFiles::append_to(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kCreate, path));
  TITAN_ASSIGN_OR_RETURN(auto file, base_.append_to(path));
  return std::make_unique<FaultyWritableFile>(std::move(file), path, hook_);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultyFiles::open(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kOpen, path));
  TITAN_ASSIGN_OR_RETURN(auto file, base_.open(path));
  return std::make_unique<FaultyReadableFile>(std::move(file), path, hook_);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultyFiles::open_no_link(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kOpen, path));
  TITAN_ASSIGN_OR_RETURN(auto file, base_.open_no_link(path));
  return std::make_unique<FaultyReadableFile>(std::move(file), path, hook_);
}

absl::StatusOr<absl::Time> FaultyFiles::touch(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kTouch, path));
  return base_.touch(path);
}

absl::StatusOr<absl::Time> FaultyFiles::modified(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kOpen, path));
  return base_.modified(path);
}

absl::Status FaultyFiles::rename(const std::string& from, const std::string& to) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kRename, to));
  return base_.rename(from, to);
}

absl::Status FaultyFiles::truncate(const std::string& path, int64_t bytes) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kTruncate, path));
  return base_.truncate(path, bytes);
}

absl::Status FaultyFiles::remove(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kRemove, path));
  return base_.remove(path);
}

absl::Status FaultyFiles::remove_folder(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kRemoveFolder, path));
  return base_.remove_folder(path);
}

absl::Status FaultyFiles::make_folders(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kMakeFolders, path));
  return base_.make_folders(path);
}

absl::Status FaultyFiles::sync_folder(const std::string& path) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kSyncFolder, path));
  return base_.sync_folder(path);
}

absl::StatusOr<std::vector<std::string>> FaultyFiles::list(const std::string& folder) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kList, folder));
  return base_.list(folder);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultyFiles::lock(const std::string& path, LockMode mode,
                                                            absl::Duration timeout) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kLock, path));
  return base_.lock(path, mode, timeout);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultyFiles::try_lock(const std::string& path, LockMode mode) {
  TITAN_RETURN_IF_ERROR(ask(Kind::kLock, path));
  return base_.try_lock(path, mode);
}

}  // namespace titan::storage
