#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/tokens/checked_file.h"

namespace titan::data {

// Where each document of files starts, on disk: any one is found in a read. DocumentIndex is the small one beside it,
// for readers that go on from there.
class DocumentPlaces {
 public:
  // From `folder`, where the file lies under a name that depends on the files' names, sizes and times of change; else
  // it is made, by reading everything, by one process at a time. Errors: those of the files, and of the folder.
  static absl::StatusOr<DocumentPlaces> get(const std::vector<std::string>& files, const FileKind& kind,
                                            const std::string& folder);
  // The file itself, of so many files. Errors: DataLoss for anything but what get() made.
  static absl::StatusOr<DocumentPlaces> open(const std::string& path, int64_t files);

  int64_t documents() const { return firsts_.back(); }  // Malformed ones included.
  // Errors: DataLoss, names the file of places.
  absl::StatusOr<DocumentPosition> place(int64_t document);

 private:
  DocumentPlaces(std::vector<int64_t> firsts, CheckedFile places)
      : firsts_(std::move(firsts)), places_(std::move(places)) {}

  std::vector<int64_t> firsts_;  // The number of each file's first document, and of all.
  CheckedFile places_;
};

}  // namespace titan::data
