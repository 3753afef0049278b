#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// A place between two documents of a list of files.
struct DocumentPosition {
  int64_t file = 0;
  int64_t offset = 0;    // Bytes of the file before this place, or what its kind counts (FilePlace).
  int64_t line = 0;      // Lines, or what its kind counts.
  int64_t document = 0;  // Documents of all files before it, including skipped malformed ones.

  bool operator==(const DocumentPosition&) const = default;
};

// The documents that one reader reads, in order.
struct DocumentShare {
  int64_t begin = 0;                // First document.
  std::optional<int64_t> end;       // The one after the last; no value: all documents after `begin`.
  int64_t step = 1, remainder = 0;  // Reads the documents with document % step == remainder.
};

struct Document {
  std::string text;
  std::optional<std::vector<TextSpan>> labels;  // See DocumentText.
  std::optional<std::vector<int32_t>> tokens;   // See DocumentText.
  DocumentPosition position;                    // Where it starts.
};

// Reads the documents of files, whatever their kind. Malformed ones ("lines" below) are reported and skipped.
class DocumentReader {
 public:
  struct Options {
    std::vector<std::string> files;
    FileKind kind;
    DocumentShare share;
    DocumentPosition start = {};  // Where every pass begins; no document of the share is before it.
    int64_t max_bad_lines = 100;
  };
  explicit DocumentReader(Options options) : options_(std::move(options)), position_(options_.start) {}

  // Returns the next document, or nothing after the last. Errors: InvalidArgument beyond max_bad_lines (names file and
  // line) and for damaged compressed data; NotFound and other errors of the disk.
  absl::StatusOr<std::optional<Document>> next();

  // Counts the last document as malformed, if the caller finds that it is. InvalidArgument beyond max_bad_lines.
  absl::Status refuse(const std::string& why);

  // Returns where the next document (or blank or malformed line) starts.
  const DocumentPosition& position() const { return position_; }

  // Continues at a position that a reader of the same files returned. Errors: InvalidArgument if the files have no such
  // position.
  absl::Status seek(const DocumentPosition& position, int64_t bad_lines);
  // Starts again at the first document. Malformed lines are counted from 0 again, but not described again.
  void rewind();

  // Returns the number of malformed lines in this pass so far.
  int64_t bad_lines() const { return bad_lines_; }
  // Returns descriptions of the malformed lines since the last call: "data.json:17: not JSON".
  std::vector<std::string> take_warnings();

 private:
  absl::StatusOr<bool> next_document();

  Options options_;
  DocumentPosition position_;
  int64_t bad_lines_ = 0;
  bool read_before_ = false;  // False in the first pass.
  std::vector<std::string> warnings_;
  std::unique_ptr<DocumentFile> open_;  // The file of position_, once something was read from it.
};

}  // namespace titan::data
