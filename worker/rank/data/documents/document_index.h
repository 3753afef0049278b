#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"

namespace titan::data {

// How many documents files have, and where some of them start, so that a reader of a chunk begins beside it.
class DocumentIndex {
 public:
  // Reads every file.
  static absl::StatusOr<DocumentIndex> make(const std::vector<std::string>& files, const FileKind& kind);
  // Takes it from `folder`, where it lies under a name that depends on the files' names, sizes and times of change;
  // else makes it, one process at a time, and keeps it there. A folder that cannot be written only costs the making.
  static absl::StatusOr<DocumentIndex> get(const std::vector<std::string>& files, const FileKind& kind,
                                           const std::string& folder);

  int64_t documents() const { return documents_; }  // Malformed ones included.
  // A place at or before a document; never far before it.
  DocumentPosition before(int64_t document) const;

  // With a checksum. Errors: DataLoss for anything but a text that to_text gave.
  std::string to_text() const;
  static absl::StatusOr<DocumentIndex> from_text(const std::string& text);

 private:
  int64_t documents_ = 0;
  std::vector<DocumentPosition> marks_;  // By document; the first is of document 0.
};

}  // namespace titan::data
