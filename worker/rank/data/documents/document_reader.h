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
  int64_t offset = 0;    // Where in the file, as its kind counts (FilePlace): bytes before this place,
  int64_t line = 0;      // and lines.
  int64_t document = 0;  // Documents of all files before it, skipped malformed ones included.

  bool operator==(const DocumentPosition&) const = default;
};

// The share of the documents that one reader takes, in order.
struct DocumentShare {
  int64_t begin = 0;                // First document,
  std::optional<int64_t> end;       // and the one after the last; nothing: all that follow.
  int64_t step = 1, remainder = 0;  // Of these the ones with document % step == remainder.
};

struct Document {
  std::string text;
  std::optional<std::vector<TextSpan>> labels;  // As DocumentText has them,
  std::optional<std::vector<int32_t>> tokens;   // and these.
  DocumentPosition position;                    // Where it starts.
};

// Reads the documents of files, whatever their kind. Malformed ones ("lines", below) are noted and skipped.
class DocumentReader {
 public:
  struct Options {
    std::vector<std::string> files;
    FileKind kind;
    DocumentShare share;
    DocumentPosition start = {};  // Where every pass begins: no document of the share is before it.
    int64_t max_bad_lines = 100;
  };
  explicit DocumentReader(Options options) : options_(std::move(options)), position_(options_.start) {}

  // The next document, or nothing after the last. Errors: InvalidArgument past max_bad_lines (names file and line) and
  // for damaged compressed data, NotFound and others from the disk.
  absl::StatusOr<std::optional<Document>> next();

  // That document is malformed, too: for whoever learns it later. InvalidArgument past max_bad_lines.
  absl::Status refuse(const std::string& why);

  // Where the next document (or blank or malformed line) starts.
  const DocumentPosition& position() const { return position_; }

  // Continues at a position that a reader of the same files gave. Errors: InvalidArgument when the files do not reach
  // there.
  absl::Status seek(const DocumentPosition& position, int64_t bad_lines);
  // Starts again at the first document; malformed lines count from 0 again and are not described again.
  void rewind();

  // Malformed lines of this pass.
  int64_t bad_lines() const { return bad_lines_; }
  // Descriptions of the malformed lines since the last call: "data.json:17: not JSON".
  std::vector<std::string> take_warnings();

 private:
  absl::StatusOr<bool> next_document();

  Options options_;
  DocumentPosition position_;
  int64_t bad_lines_ = 0;
  bool read_before_ = false;  // Not the first pass.
  std::vector<std::string> warnings_;
  std::unique_ptr<DocumentFile> open_;  // The file of position_, once something was read of it.
};

}  // namespace titan::data
