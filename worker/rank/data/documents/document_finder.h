#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_places.h"

namespace titan::data {

// The documents of a pass, mostly a shuffled one, by their numbers in it.
class DocumentFinder {
 public:
  virtual ~DocumentFinder() = default;

  virtual int64_t documents() const = 0;  // Malformed ones included.
  // Errors: those of DocumentFile; DataLoss when there is none where one should be.
  struct Found {
    DocumentText text;
    std::string name;  // For people: "data.json:17".
  };
  virtual absl::StatusOr<Found> read(int64_t pass, int64_t number) = 0;
  // As a position has it: of shuffled documents the number alone; behind the last one, where the next pass begins.
  virtual absl::StatusOr<DocumentPosition> position(int64_t number) = 0;
  // Whether position() may have said that. Errors: InvalidArgument when the files have changed since.
  absl::Status check(const DocumentPosition& saved);

 protected:
  virtual const std::vector<std::string>& files() const = 0;
  virtual const FileKind& kind() const = 0;
  virtual bool in_order() const = 0;
};

// What is shuffled: of the documents those from `first` on, or so many of these.
struct ShuffledShare {
  int64_t seed = 0;
  int64_t first = 0, documents = -1;
  bool in_order = false;  // Not at all.
};

// Each document by itself, in any order.
std::unique_ptr<DocumentFinder> find_by_places(std::vector<std::string> files, const FileKind& kind,
                                               DocumentPlaces places, const ShuffledShare& share);

// Of Parquet files, which decode rows one after the other: blocks of a row group in any order, and the rows of each,
// which are held in memory, in any order. `row_groups` as parquet_row_groups() gives them, of each file.
// Those in order come in smaller blocks.
constexpr int64_t kBlockRows = 8192, kOrderedBlockRows = 512;
std::unique_ptr<DocumentFinder> find_in_blocks(std::vector<std::string> files, const FileKind& kind,
                                               const std::vector<std::vector<int64_t>>& row_groups,
                                               const ShuffledShare& share);

}  // namespace titan::data
