#pragma once

// Writes an archive of torch.save front to back, so that no tensor has to be in memory as a whole: its checksum follows
// it (APPNOTE 6.3, data descriptors).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace titan::pickle {

class ArchiveStream {
 public:
  // `append` receives the next bytes of the archive's file.
  explicit ArchiveStream(std::function<absl::Status(std::string_view)> append) : append_(std::move(append)) {}

  // Starts the next entry, of `bytes` bytes, which append() then adds. They start at a multiple of 64, as in
  // torch.save, for readers that map the file.
  absl::Status begin(const std::string& name, int64_t bytes);
  absl::Status append(std::string_view bytes);
  absl::Status add(const std::string& name, std::string_view bytes);  // Does both.
  absl::Status finish();                                              // Writes the directory, after all entries.

 private:
  absl::Status write(std::string_view bytes);
  absl::Status end_entry();

  std::function<absl::Status(std::string_view)> append_;
  int64_t written_ = 0;
  std::string directory_;
  int64_t entries_ = 0;
  // The entry being written.
  std::string name_;  // Empty: none.
  int64_t at_ = 0, bytes_ = 0, left_ = 0;
  uint32_t sum_ = 0;
};

}  // namespace titan::pickle
