#pragma once

// Reads one file as documents in order, whatever its kind. Provides the names, file facts and error messages that
// depend on the kind.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/datasets.h"
#include "common/io/data_files/file_place.h"
#include "worker/rank/data/chat/chat.h"

namespace titan::data {

struct LoadedDataset;

// Describes how files are read as documents.
struct FileKind {
  data_files::DatasetFormat format = data_files::DatasetFormat::kJsonLines;
  std::string text_key = "text";          // Key or column of the text, in JSON lines and Parquet.
  std::string messages_key = {};          // Key or column of conversations; empty: documents are texts.
  bool train_on_all = false;              // Conversations: every token is a label.
  bool blank_lines = false;               // Plain text: a document ends at a blank line, not with its file.
  int64_t read_ahead = int64_t{1} << 20;  // Bytes of text read at once.
  std::shared_ptr<data_files::RemoteFiles> remote = nullptr;  // Reads the files; null: they are on this machine.
  std::shared_ptr<const Chat> chat = nullptr;  // Renders conversations, once the tokenizer is known (with_tokenizer).
  std::shared_ptr<const LoadedDataset> plugin = nullptr;  // DatasetFormat::kPlugin: the dataset that reads the files.
  int32_t max_token_id = -1;  // DatasetFormat::kPlugin: the largest valid token, once the tokenizer is known.
  std::string warning = {};   // Warning about the choice of files, for the job's log (DatasetFiles).
};

// Returns whether no token marks the end of a document, so that rows have to record it: in conversations, and in
// documents that a plug-in returns as tokens.
bool has_pieces(const FileKind& kind);

// A document's text, or the reason why it has none.
struct DocumentText {
  std::string text;
  std::string problem;
  std::optional<std::vector<TextSpan>> labels = {};  // Labels of a conversation; no value: every token is one.
  std::optional<std::vector<int32_t>> tokens = {};   // Set if the document is not text. Marked as label_tokens.h says.
};

// Renders a row that holds a conversation.
DocumentText conversation_text(const Chat& chat, std::string_view row);

// The documents of one file, in order.
class DocumentFile {
 public:
  virtual ~DocumentFile() = default;

  // Moves to the next document; false after the last. Errors: those of the disk; InvalidArgument for damaged data
  // (names the file).
  virtual absl::StatusOr<bool> next() = 0;

  // Describe the document that next() moved to: where it starts, its content (readable once), and its name for
  // messages, "data.json:17".
  virtual data_files::FilePlace start() const = 0;
  virtual absl::StatusOr<DocumentText> text() = 0;
  virtual std::string name() const = 0;

  // Returns the place after that document.
  virtual data_files::FilePlace place() const = 0;

  // Opens a file at a place that start() or place() returned. Errors: those of next(); NotFound; InvalidArgument if no
  // document can start there (the file has changed); Unimplemented for Parquet without its library.
  static absl::StatusOr<std::unique_ptr<DocumentFile>> open(const std::string& path, const FileKind& kind,
                                                            const data_files::FilePlace& place);
};

// Returns the first compressed file, which cannot be opened in the middle, or null. Always null for a plug-in's
// dataset, which decides itself how it reads.
const std::string* first_compressed(const std::vector<std::string>& files, const FileKind& kind);

// Returns the kind's part in the names of files that are kept next to the data: "jsonl"; for a plug-in's dataset also
// its library's checksum.
std::string cache_name(const FileKind& kind);

// Return, for messages, the word for a document of the kind ("line") and the rule for it ("lines have to be JSON
// objects ...").
std::string document_word(const FileKind& kind);
std::string document_rule(const FileKind& kind);

// DocumentFile::open() calls one of these, by the kind of file.
absl::StatusOr<std::unique_ptr<DocumentFile>> open_json_lines(const std::string& path, const FileKind& kind,
                                                              const data_files::FilePlace& place);
absl::StatusOr<std::unique_ptr<DocumentFile>> open_text(const std::string& path, const FileKind& kind,
                                                        const data_files::FilePlace& place);
absl::StatusOr<std::unique_ptr<DocumentFile>> open_plugin(const std::string& path, const FileKind& kind,
                                                          const data_files::FilePlace& place);

// Reads the first few documents of a plug-in's dataset twice: in order, and each by its place. A reader that does not
// find them again would otherwise fail only when a job resumes, days later. InvalidArgument: names the file and the
// place.
absl::Status check_places(const std::string& path, const FileKind& kind);

// A file of rows that can be read in any order. It reaches a later row of the same row group from the current one.
class DocumentRowsFile : public DocumentFile {
 public:
  // Moves before the row at `place`. Errors: InvalidArgument if there is no such row.
  virtual absl::Status seek(const data_files::FilePlace& place) = 0;
};
absl::StatusOr<std::unique_ptr<DocumentRowsFile>> open_parquet(const std::string& path, const FileKind& kind,
                                                               const data_files::FilePlace& place);

// Returns the number of rows of each row group of a Parquet file.
absl::StatusOr<std::vector<int64_t>> parquet_row_groups(const std::string& path, const FileKind& kind);

// Returns the error of a reader with more than `most` malformed documents in a pass; this is the `number`th. `place`:
// "data.json:17: not JSON".
absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind);
// Returns the error of a pass without anything to train on. `reasons` describes its malformed documents, with their
// places.
absl::Status no_documents(std::vector<std::string> reasons);

// Returns a string that changes when one of the files does: a checksum of `more` and of their names, sizes and
// modification times, then their total bytes. It is part of the names of files that are kept next to data. Errors:
// those of the disk.
absl::StatusOr<std::string> file_facts(const std::vector<std::string>& files, const std::string& more = "");
// The same for remote files, whose names contain their commit.
std::string remote_facts(const std::vector<std::string>& files, const std::string& more);

}  // namespace titan::data
