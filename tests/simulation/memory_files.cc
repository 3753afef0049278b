#include "tests/simulation/memory_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::simulation {
namespace {

absl::Status missing(const std::string& path) { return absl::NotFoundError(absl::StrCat(path, " does not exist")); }

struct Writer : storage::WritableFile {
  explicit Writer(std::shared_ptr<std::string> to) : bytes(std::move(to)) {}
  absl::Status append(std::string_view more) override {
    bytes->append(more);
    return absl::OkStatus();
  }
  absl::Status sync() override { return absl::OkStatus(); }
  absl::Status close() override { return absl::OkStatus(); }
  std::shared_ptr<std::string> bytes;
};

struct Reader : storage::ReadableFile {
  explicit Reader(std::string content) : bytes(std::move(content)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes.size()); }
  absl::Status read(int64_t offset, int64_t count, char* out) override {
    if (offset + count > size()) return absl::DataLossError("the file ends before this range");
    std::copy_n(bytes.begin() + offset, count, out);
    return absl::OkStatus();
  }
  std::string bytes;
};

}  // namespace

absl::StatusOr<std::unique_ptr<storage::WritableFile>> MemoryFiles::create(const std::string& path) {
  const auto [made, is_new] = files_.try_emplace(path, std::make_shared<File>());
  if (!is_new) return absl::AlreadyExistsError(absl::StrCat(path, " exists"));
  made->second->time = now();
  return std::make_unique<Writer>(std::shared_ptr<std::string>(made->second, &made->second->bytes));
}

absl::StatusOr<std::unique_ptr<storage::WritableFile>> MemoryFiles::append_to(const std::string& path) {
  std::shared_ptr<File>& file = files_[path];
  if (file == nullptr) file = std::make_shared<File>();
  file->time = now();
  return std::make_unique<Writer>(std::shared_ptr<std::string>(file, &file->bytes));
}

absl::StatusOr<std::unique_ptr<storage::ReadableFile>> MemoryFiles::open(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return missing(path);
  return std::make_unique<Reader>(found->second->bytes);
}

absl::StatusOr<std::unique_ptr<storage::ReadableFile>> MemoryFiles::open_no_link(const std::string& path) {
  return open(path);
}

absl::Status MemoryFiles::rename(const std::string& from, const std::string& to) {
  auto file = files_.extract(from);
  if (file.empty()) return missing(from);
  files_[to] = std::move(file.mapped());
  return absl::OkStatus();
}

absl::Status MemoryFiles::truncate(const std::string& path, int64_t bytes) {
  const auto found = files_.find(path);
  if (found == files_.end()) return missing(path);
  found->second->bytes.resize(static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status MemoryFiles::remove(const std::string& path) {
  return files_.erase(path) > 0 ? absl::OkStatus() : missing(path);
}

absl::Status MemoryFiles::remove_folder(const std::string& path) {
  for (const std::string& name : list(path).value_or(std::vector<std::string>())) files_.erase(path + "/" + name);
  return absl::OkStatus();
}

// Folders do not exist here: any path can be written at once.
absl::Status MemoryFiles::make_folders(const std::string&) { return absl::OkStatus(); }
absl::Status MemoryFiles::sync_folder(const std::string&) { return absl::OkStatus(); }

absl::StatusOr<std::vector<std::string>> MemoryFiles::list(const std::string& folder) {
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (auto it = files_.lower_bound(prefix); it != files_.end() && absl::StartsWith(it->first, prefix); ++it) {
    names.push_back(it->first.substr(prefix.size()));
  }
  if (names.empty()) return missing(folder);
  return names;
}

bool MemoryFiles::exists(const std::string& path) { return files_.count(path) > 0; }
bool MemoryFiles::is_folder(const std::string& path) { return list(path).ok(); }

absl::StatusOr<absl::Time> MemoryFiles::touch(const std::string& path) {
  std::shared_ptr<File>& file = files_[path];
  if (file == nullptr) file = std::make_shared<File>();
  return file->time = now();
}

absl::StatusOr<absl::Time> MemoryFiles::modified(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return missing(path);
  return found->second->time;
}

absl::StatusOr<std::unique_ptr<storage::FileLock>> MemoryFiles::lock(const std::string&, storage::LockMode,
                                                                     absl::Duration) {
  return std::make_unique<storage::FileLock>();
}

absl::StatusOr<std::unique_ptr<storage::FileLock>> MemoryFiles::try_lock(const std::string& path,
                                                                         storage::LockMode mode) {
  return lock(path, mode, absl::ZeroDuration());
}

}  // namespace titan::simulation
