#include "common/io/storage/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "common/base/status/status.h"

namespace titan::storage {

absl::StatusOr<std::string> read_file(Files& files, const std::string& path, int64_t max_bytes) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  if (file->size() > max_bytes) {
    return absl::DataLossError(
        absl::StrCat("read ", path, ": ", file->size(), " bytes, but at most ", max_bytes, " are expected"));
  }
  std::string bytes(static_cast<size_t>(file->size()), '\0');
  TITAN_RETURN_IF_ERROR(file->read(0, file->size(), bytes.data()));
  return bytes;
}

absl::Status atomic_write(Files& files, const std::string& path, std::string_view bytes) {
  if (auto* whole = dynamic_cast<WholeWriter*>(&files); whole != nullptr && whole->writes_whole(path)) {
    return whole->write_whole(path, bytes);
  }
  // Unique within the process. A dead process may have left a file of that name, which create() refuses to touch.
  static std::atomic<uint64_t> counter{0};
  std::string temporary;
  std::unique_ptr<WritableFile> file;
  for (int attempt = 0; file == nullptr; ++attempt) {
    temporary = absl::StrCat(path, ".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
    auto created = files.create(temporary);
    if (created.ok()) {
      file = *std::move(created);
    } else if (created.status().code() != absl::StatusCode::kAlreadyExists || attempt == 100) {
      return created.status();
    }
  }
  absl::Status status = file->append(bytes);
  if (status.ok()) status = file->sync();
  if (absl::Status closed = file->close(); status.ok()) status = closed;
  if (status.ok()) status = files.rename(temporary, path);
  if (!status.ok()) {
    files.remove(temporary).IgnoreError();
    return status;
  }
  const size_t slash = path.rfind('/');
  return files.sync_folder(slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash));
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty() || (!name.empty() && name.front() == '/') || name.find("://") != name.npos) {
    return std::string(name);
  }
  std::string path(folder);
  if (path.back() != '/') path += '/';
  path += name;
  return path;
}

}  // namespace titan::storage
