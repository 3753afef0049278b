#pragma once

// A shared in-memory file system with the time of the simulation. It has only what the fence of dump folders uses.
// Nothing waits, because one thread does everything.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/io/storage/file.h"
#include "tests/simulation/timeline.h"

namespace titan::simulation {

class MemoryFiles : public storage::Files {
 public:
  explicit MemoryFiles(const Timeline& timeline) : timeline_(timeline) {}

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> append_to(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> open_no_link(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status truncate(const std::string& path, int64_t bytes) override;
  absl::Status remove(const std::string& path) override;
  absl::Status remove_folder(const std::string& path) override;
  absl::Status make_folders(const std::string& path) override;
  absl::Status sync_folder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& folder) override;
  bool exists(const std::string& path) override;
  bool is_folder(const std::string& path) override;
  absl::StatusOr<absl::Time> touch(const std::string& path) override;
  absl::StatusOr<absl::Time> modified(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::FileLock>> lock(const std::string& path, storage::LockMode mode,
                                                          absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<storage::FileLock>> try_lock(const std::string& path, storage::LockMode mode) override;

 private:
  struct File {
    std::string bytes;
    absl::Time time;
  };
  absl::Time now() const { return absl::UnixEpoch() + timeline_.now(); }

  const Timeline& timeline_;
  std::map<std::string, std::shared_ptr<File>> files_;  // By path.
};

}  // namespace titan::simulation
