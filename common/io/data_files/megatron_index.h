#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::data_files {

// Finds where documents begin in Megatron-LM's NAME.bin, by reading NAME.idx. It validates what it reads. Not
// thread-safe.
class MegatronIndex {
 public:
  // Opens `path`, the .idx, and the .bin next to it. Reads the header and checks that the ends of both files fit it.
  // Errors: DataLoss, or those of the disk; both name the file.
  static absl::StatusOr<MegatronIndex> open(const std::string& path);

  int64_t tokens() const { return bin_->size() / width_; }
  int64_t documents() const { return borders_ - 1; }
  int kind() const { return kind_; }        // Token type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16.
  int64_t width() const { return width_; }  // Bytes per token.

  // Returns the index of a document's first token, or tokens() for document documents(). Errors: DataLoss.
  absl::StatusOr<int64_t> document_begin(int64_t document);
  // Reads the whole index and checks that sequences and documents follow one another. Errors: DataLoss.
  absl::Status verify();

  const std::string& bin_path() const { return bin_path_; }
  storage::ReadableFile& bin() const { return *bin_; }

 private:
  explicit MegatronIndex(const std::string& path);
  absl::Status unfit(absl::string_view why) const;
  absl::Status read_header();
  absl::Status check_ends();
  template <typename T>
  absl::StatusOr<T> number(int64_t at);
  absl::StatusOr<int64_t> border(int64_t document);
  absl::StatusOr<int64_t> sequence_begin(int64_t sequence);

  std::string path_, bin_path_;
  std::unique_ptr<storage::ReadableFile> index_, bin_;
  uint8_t kind_ = 0;
  int64_t width_ = 2, sequences_ = 0, borders_ = 1;
};

}  // namespace titan::data_files
