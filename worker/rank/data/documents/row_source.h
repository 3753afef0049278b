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

// The order in which a pass is read.
enum class Shuffle { kNone, kRows, kDocuments };

// How rows are made from the files. It decides what a position counts.
struct Arrangement {
  Shuffle shuffle = Shuffle::kNone;
  int64_t seed = 0;
  int64_t of = 0;          // Rows or documents that are shuffled; position.document.document numbers them.
  int64_t window = 0;      // Documents that are packed together; 0: rows are cut from one stream.
  int64_t row_tokens = 0;  // Set where another row length changes the rows: if they are shuffled or packed.

  bool operator==(const Arrangement&) const = default;
};

// A place in the token stream: `token` tokens into the document at `document`.
struct StreamPosition {
  DocumentPosition document;
  int64_t token = 0;
  int64_t pass = 0;       // Times that the documents have been read to the end.
  int64_t bad_lines = 0;  // In this pass, before `document`.
  int64_t row = 0;        // With packing: rows after that place.
  Arrangement arrangement;

  bool operator==(const StreamPosition&) const = default;
};

// Convert to and from the values of training.dataloader.shuffle: "rows" and so on.
const char* name(Shuffle shuffle);
std::optional<Shuffle> shuffle_from_name(std::string_view name);

// Rows of a fixed number of tokens, cut from one stream in which each document is BOS, text, EOS. A stream that loops
// starts again after the last document, so a row may span the seam. A stream that does not loop drops the tokens that
// do not fill a row.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Returns the next row's tokens `[row_tokens]`, valid until the next call; null at the end. Tokens that are not
  // labels are marked (label_tokens.h).
  virtual absl::StatusOr<const int32_t*> next() = 0;
  // Returns the ends of the pieces of that row, in order; padding follows the last one. Empty: rows are cut from one
  // stream of texts.
  virtual absl::Span<const int64_t> piece_ends() const { return {}; }
  // Returns whether rows have pieces.
  virtual bool has_pieces() const { return false; }
  // Skips rows of other ranks. Returns how many; fewer than `rows` only at the end.
  virtual absl::StatusOr<int64_t> skip(int64_t rows) = 0;

  // Returns the number of padding tokens in all rows so far, including skipped rows.
  virtual int64_t padding() const { return 0; }

  // Return where the next row starts, and move there. Errors of seek(): InvalidArgument if the files do not have that
  // position any more.
  virtual absl::StatusOr<StreamPosition> position() = 0;
  virtual absl::Status seek(const StreamPosition& position) = 0;

  // Warnings since the last call. Some come only once, such as the warning that a pass has few rows, which training
  // repeats endlessly.
  virtual std::vector<std::string> take_warnings() = 0;
};

// Returns that warning if a pass has fewer tokens than eight rows; otherwise an empty text.
std::string few_rows_warning(int64_t tokens, int64_t row_tokens);

}  // namespace titan::data
