#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_places.h"

namespace titan::data {

// Finds the documents of a pass, usually a shuffled one, by their numbers in it.
class DocumentFinder {
 public:
  virtual ~DocumentFinder() = default;

  virtual int64_t documents() const = 0;  // Includes malformed ones.
  // Errors: those of DocumentFile; DataLoss if a document is missing where one should be.
  struct Found {
    DocumentText text;
    std::string name;  // For messages: "data.json:17".
  };
  virtual absl::StatusOr<Found> read(int64_t pass, int64_t number) = 0;
  // Returns the position of a document: when shuffled, only its number. For documents(): the end of the files.
  virtual absl::StatusOr<DocumentPosition> position(int64_t number) = 0;
  // Checks that position() may have returned this. Errors: InvalidArgument if the files have changed since.
  absl::Status check(const DocumentPosition& saved);

 protected:
  virtual const std::vector<std::string>& files() const = 0;
  virtual const FileKind& kind() const = 0;
  virtual bool in_order() const = 0;
};

// The documents to shuffle: `documents` of them, starting at `first`.
struct ShuffledShare {
  int64_t seed = 0;
  int64_t first = 0, documents = -1;
  bool in_order = false;  // Keeps the order of the files.
};

// Returns a finder that reads each document by its place in the table, in any order.
std::unique_ptr<DocumentFinder> find_by_places(std::vector<std::string> files, const FileKind& kind,
                                               DocumentPlaces places, const ShuffledShare& share);

// Returns a finder for Parquet files, whose rows are decoded one after the other. It shuffles blocks, each from one row
// group, and the rows inside a block, which it holds in memory. `row_groups`: the result of parquet_row_groups() for
// each file. A block has kBlockRows rows; without shuffling, kOrderedBlockRows.
constexpr int64_t kBlockRows = 8192, kOrderedBlockRows = 512;
std::unique_ptr<DocumentFinder> find_in_blocks(std::vector<std::string> files, const FileKind& kind,
                                               const std::vector<std::vector<int64_t>>& row_groups,
                                               const ShuffledShare& share);

}  // namespace titan::data
