#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {

// Reads files of one folder that belong to a sample, and adds their bytes to Sample::stored_bytes.
class FolderFiles {
 public:
  FolderFiles(std::string folder, const SampleKind& kind)
      : folder_(std::move(folder)), files_(kind.files != nullptr ? *kind.files : storage::posix_files()) {}

  // Returns the content, or nothing if there is no such file or it has over 1 GiB; `problem` then says which. `name`
  // may have folders, but may not lead out of the folder. Errors: those of the disk or store.
  absl::StatusOr<std::optional<std::string>> read(const std::string& name, Sample& sample, std::string& problem) const;

  // Returns the first `bytes` bytes of a file that the folder's list named; "" if it is gone. Errors: those of the disk
  // or store.
  absl::StatusOr<std::string> start(const std::string& name, int64_t bytes) const;

  storage::Files& files() const { return files_; }
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
  storage::Files& files_;
};

}  // namespace titan::data
