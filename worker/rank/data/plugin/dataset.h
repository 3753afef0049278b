#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/file_place.h"

// What a dataset from outside of this tree is: a reader of files, which goes on at any place between two documents.
// Order, shuffling, packing, mixing, shares of ranks and cursors are Titan's. docs/howto/add-a-dataset.md shows one.
namespace titan::data {

// A document, as a dataset gives it.
struct PluginDocument {
  std::string text;             // UTF-8; where the job sets messages_key, a JSON object that has these messages.
  std::vector<int32_t> tokens;  // Of Gives::kTokens instead: all of them, with what begins and ends a document.
  std::vector<bool> labels;     // For each of these whether it is to be foretold; empty: all are.
  std::string problem;          // Why there is no document here: it is named, counted and left out.
};

// The documents of one file, in order. A reader is used by one thread at a time, but there are many, also of one file.
class PluginReader {
 public:
  virtual ~PluginReader() = default;

  // The next document, written into an empty one; false behind the last. Errors, and what is thrown, end the job with
  // the file and the place.
  virtual absl::StatusOr<bool> next(PluginDocument& document) = 0;

  // Where the next document starts: {0, 0} in the beginning, and behind each document a larger place than before it, by
  // offset and then by line, neither beyond kMaxPlace. What the numbers count is the dataset's own affair.
  virtual data_files::FilePlace place() const = 0;
};

enum class Gives { kTexts, kTokens };

struct PluginDataset {
  std::string name;             // training.dataset of jobs that read it: letters, digits, "-", "_", ".".
  Gives gives = Gives::kTexts;  // All documents alike.
  std::string ending;           // Of a folder only files whose names end so; empty: all that are not hidden.

  // Opens a file of training.dataset_path at a place that a reader gave: the same documents follow, always, until the
  // file's size or time changes. Cheap where it can be: of shuffled data each document is opened by its place.
  absl::StatusOr<std::unique_ptr<PluginReader>> (*open)(const std::string& file,
                                                        const data_files::FilePlace& place) = nullptr;
};

}  // namespace titan::data
