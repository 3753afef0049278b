#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/file_place.h"

// A dataset from outside of this tree is a reader of files that can resume between any two documents. Titan handles
// order, shuffling, packing, mixing, ranks' shares and cursors. docs/howto/add-a-dataset.md has an example.
namespace titan::data {

// One document that a plug-in's dataset returns.
struct PluginDocument {
  std::string text;             // UTF-8. If the job sets messages_key: a JSON object with these messages.
  std::vector<int32_t> tokens;  // Replaces `text` with Content::kTokens. Includes the tokens that begin and end a
                                // document.
  std::vector<bool> labels;     // For each of `tokens` whether the loss counts it; empty: it counts all.
  std::string problem;  // If set, the document is malformed: this reason is reported, the document counted and skipped.
};

// Reads the documents of one file in order. One thread at a time uses a reader, but a file may have many readers.
class PluginReader {
 public:
  virtual ~PluginReader() = default;

  // Writes the next document into `document`, which is empty; false after the last. An error or exception ends the job
  // and names the file and the place.
  virtual absl::StatusOr<bool> next(PluginDocument& document) = 0;

  // Returns the place where the next document starts: {0, 0} at the beginning, larger after each document, by offset
  // and then by line. Neither number exceeds kMaxPlace. The dataset chooses what the numbers count.
  virtual data_files::FilePlace place() const = 0;
};

// Whether documents come as texts, for the job's tokenizer, or as its tokens.
enum class Content { kTexts, kTokens };

// A dataset that a library registers (TITAN_DATA_PLUGIN in plugin.h).
struct PluginDataset {
  std::string name;                   // training.dataset of the jobs that read it: letters, digits, "-", "_", ".".
  Content content = Content::kTexts;  // The same for all documents.
  std::string ending;  // In a folder, only files with this suffix are read; empty: all that are not hidden.

  // Opens a file of training.dataset_path at a place that a reader returned. The same documents must follow every time,
  // until the file's size or modification time changes. Keep it cheap: shuffled data opens each document by its place.
  absl::StatusOr<std::unique_ptr<PluginReader>> (*open)(const std::string& file,
                                                        const data_files::FilePlace& place) = nullptr;
};

}  // namespace titan::data
