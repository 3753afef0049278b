#pragma once

// The safetensors format: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes without
// gaps.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::checkpoint {

// Convert between types and the format's names, "F32", "BF16", ... InvalidArgument for types that the other side lacks.
absl::StatusOr<std::string> safetensors_dtype(c10::ScalarType type);
absl::StatusOr<c10::ScalarType> scalar_type(const std::string& safetensors_dtype);

// A tensor of a safetensors file.
struct TensorEntry {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  int64_t begin = 0;      // From the start of the file. layout() sets it.
  int64_t bytes() const;  // -1 if the shape has a negative size or too many bytes.
};

// Places the entries one after the other, larger element sizes first so that each is aligned. Returns the header (with
// its length in front, padded so that data starts at a multiple of 64) and the size of the whole file.
struct Layout {
  std::string header;
  int64_t file_bytes = 0;
};
absl::StatusOr<Layout> layout(std::vector<TensorEntry>& entries,
                              const std::map<std::string, std::string>& metadata = {});

// Reads the tensors of a file, by key. Every entry lies inside the file. Errors: DataLoss, names the file and what is
// wrong.
absl::StatusOr<std::map<std::string, TensorEntry>> read_header(storage::ReadableFile& file, const std::string& path);

}  // namespace titan::checkpoint
