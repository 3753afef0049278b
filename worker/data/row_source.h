#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/document_reader.h"

namespace titan::data {

// A place in the token stream: `token` tokens into the document at `document`.
struct StreamPosition {
  DocumentPosition document;
  int64_t token = 0;
  int64_t pass = 0;       // Times that the documents have been read to the end.
  int64_t bad_lines = 0;  // Of this pass, before `document`.

  bool operator==(const StreamPosition&) const = default;
};

// Rows of a fixed number of tokens cut from one stream: each document as BOS, text, EOS, one after the other. A stream
// that loops begins again after the last document (a row may span the seam); of one that does not, what does not fill a
// row is left out.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // The next row's tokens, valid until the next call; null at the end.
  virtual absl::StatusOr<const int32_t*> next() = 0;
  // Leaves out rows that are another rank's. How many there were: fewer at the end.
  virtual absl::StatusOr<int64_t> skip(int64_t rows) = 0;

  // Where the next row starts.
  virtual absl::StatusOr<StreamPosition> position() = 0;
  virtual absl::Status seek(const StreamPosition& position) = 0;

  // What was met since the last call; some of it once, as that a pass over the documents gives so few rows that
  // training would repeat them without end.
  virtual std::vector<std::string> take_warnings() = 0;
};

// That warning, when `tokens` of a pass are fewer than a few rows; nothing otherwise.
std::string few_rows_warning(int64_t tokens, int64_t row_tokens);

}  // namespace titan::data
