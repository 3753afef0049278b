#pragma once

// Splits documents among data-parallel ranks, with an index of documents that finds where a share begins.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"

namespace titan::data {

// The number of documents in files, and where some of them start, so that a reader of a share can begin near it.
class DocumentIndex {
 public:
  // Reads every file.
  static absl::StatusOr<DocumentIndex> make(const std::vector<std::string>& files, const FileKind& kind);
  // Reads the index from `folder`, where its name depends on the files' names, sizes and modification times. If it is
  // missing or damaged, one process at a time makes it and stores it there. If `folder` is empty or cannot be written,
  // every call makes it.
  static absl::StatusOr<DocumentIndex> get(const std::vector<std::string>& files, const FileKind& kind,
                                           const std::string& folder);

  int64_t documents() const { return documents_; }  // Includes malformed ones.
  // Returns a place at or shortly before a document.
  DocumentPosition before(int64_t document) const;

  // Convert to a text with a checksum, and back. Errors: DataLoss for anything that to_text() did not make.
  std::string to_text() const;
  static absl::StatusOr<DocumentIndex> from_text(const std::string& text);

 private:
  int64_t documents_ = 0;
  std::vector<DocumentPosition> marks_;  // In order of documents; the first is document 0's.
};

// The files and documents that one data-parallel rank reads in order per_rank.
struct RankShare {
  std::vector<std::string> files;
  DocumentShare share;
  DocumentPosition start;  // Where to start looking for the first document.
};

// Returns the contiguous share of `documents` that a rank reads. If they do not divide evenly, the first ranks read one
// more each. Errors: InvalidArgument if there are fewer documents than ranks.
absl::StatusOr<DocumentShare> contiguous_share(int64_t documents, int dp_rank, int dp_size);

// Splits the files as torchtitan does. Plain files: a contiguous share of their documents, for which `index_folder`
// keeps the index (DocumentIndex::get). With a compressed or remote file, which is read as a stream and never counted:
// every dp_size-th file if the files divide evenly, else every dp_size-th document. Errors: InvalidArgument if plain
// files have fewer documents than there are ranks.
absl::StatusOr<RankShare> split_by_rank(const std::vector<std::string>& files, int dp_rank, int dp_size,
                                        const FileKind& kind = {}, const std::string& index_folder = "");

}  // namespace titan::data
