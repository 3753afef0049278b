#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/tokens/checked_file.h"

namespace titan::data {

// A table on disk of the places where documents start: one read finds any document. DocumentIndex is a smaller table,
// for readers that scan from a nearby document.
class DocumentPlaces {
 public:
  // Opens the table in `folder`, where its name depends on the files' names, sizes and modification times. If it is
  // missing, one process at a time makes it by reading all files. Errors: those of the files and of the folder.
  static absl::StatusOr<DocumentPlaces> get(const std::vector<std::string>& files, const FileKind& kind,
                                            const std::string& folder);
  // Opens a table that was made for `files` files. Errors: DataLoss for anything that get() did not make.
  static absl::StatusOr<DocumentPlaces> open(const std::string& path, int64_t files);

  int64_t documents() const { return firsts_.back(); }  // Includes malformed ones.
  // Errors: DataLoss, names the table's file.
  absl::StatusOr<DocumentPosition> place(int64_t document);

 private:
  DocumentPlaces(std::vector<int64_t> firsts, CheckedFile places)
      : firsts_(std::move(firsts)), places_(std::move(places)) {}

  std::vector<int64_t> firsts_;  // Number of each file's first document, then the number of all documents.
  CheckedFile places_;
};

}  // namespace titan::data
