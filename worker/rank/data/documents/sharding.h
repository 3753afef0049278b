#pragma once

// Splits documents among data-parallel ranks, with the index of documents that finds where a share begins.

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

// What one data-parallel rank reads in order per_rank.
struct RankShare {
  std::vector<std::string> files;
  DocumentShare share;
  DocumentPosition start;  // Where to begin to look for the first document.
};

// The chunk of `documents` that a rank takes, contiguous; the first ranks take one more each when they do not divide
// evenly. Errors: InvalidArgument when there are fewer documents than ranks.
absl::StatusOr<DocumentShare> contiguous_share(int64_t documents, int dp_rank, int dp_size);

// torchtitan's split. `index_folder`: where the index of documents is kept (DocumentIndex::get). Plain files: a
// contiguous chunk. With a compressed or remote file (read as a stream, never counted): every dp_size-th file when the
// files divide evenly, else every dp_size-th document. Errors: InvalidArgument when there are fewer documents than
// ranks.
absl::StatusOr<RankShare> split_by_rank(const std::vector<std::string>& files, int dp_rank, int dp_size,
                                        const FileKind& kind = {}, const std::string& index_folder = "");

}  // namespace titan::data
