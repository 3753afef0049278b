#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/rank/data/documents/document_reader.h"

namespace titan::data {

// In which order a pass is read.
enum class Shuffle { kNone, kRows, kDocuments };

// How rows come from the files: what a position counts depends on it.
struct Arrangement {
  Shuffle shuffle = Shuffle::kNone;
  int64_t seed = 0;
  int64_t of = 0;          // So many rows or documents are shuffled; position.document.document is a number among them.
  int64_t window = 0;      // Documents that are packed together; 0: rows are cut from one stream.
  int64_t row_tokens = 0;  // Where rows of another length would be other rows: of shuffled and of packed ones.

  bool operator==(const Arrangement&) const = default;
};

// A place in the token stream: `token` tokens into the document at `document`.
struct StreamPosition {
  DocumentPosition document;
  int64_t token = 0;
  int64_t pass = 0;       // Times that the documents have been read to the end.
  int64_t bad_lines = 0;  // Of this pass, before `document`.
  int64_t row = 0;        // Rows behind that place, of documents that are packed together.
  Arrangement arrangement;

  bool operator==(const StreamPosition&) const = default;
};

// "rows" and so on, as training.dataloader.shuffle has them.
const char* name(Shuffle shuffle);
std::optional<Shuffle> shuffle_from_name(std::string_view name);

// Rows of a fixed number of tokens cut from one stream: each document as BOS, text, EOS, one after the other. A stream
// that loops begins again after the last document (a row may span the seam); of one that does not, what does not fill a
// row is left out.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // The next row's tokens, valid until the next call; null at the end. Those that are no labels are marked
  // (label_tokens.h).
  virtual absl::StatusOr<const int32_t*> next() = 0;
  // Where the pieces of that row end, one after the other; what follows the last is padding. Empty: rows are cut from
  // one stream of texts.
  virtual absl::Span<const int64_t> piece_ends() const { return {}; }
  // Whether rows have these.
  virtual bool has_pieces() const { return false; }
  // Leaves out rows that are another rank's. How many there were: fewer at the end.
  virtual absl::StatusOr<int64_t> skip(int64_t rows) = 0;

  // Tokens of padding in all rows so far, those that were left out included.
  virtual int64_t padding() const { return 0; }

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
