#pragma once

// Reads one file as documents in order, whatever its kind, and gives the names, facts and error messages that depend on
// the kind of file.

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

// How files are read as documents.
struct FileKind {
  data_files::Format format = data_files::Format::kJsonLines;
  std::string text_key = "text";          // Of JSON lines and Parquet.
  std::string messages_key = {};          // The same of conversations; nothing: documents are texts.
  bool train_on_all = false;              // Of conversations every token is a label.
  bool blank_lines = false;               // Of plain text: a document ends at a blank line, not with its file.
  int64_t read_ahead = int64_t{1} << 20;  // Bytes of text that are read together.
  std::shared_ptr<data_files::RemoteFiles> remote = nullptr;  // Whose files they are; null: this machine's.
  std::shared_ptr<const Chat> chat = nullptr;  // Of messages_key, once the tokenizer is known (with_tokenizer).
  std::shared_ptr<const LoadedDataset> plugin = nullptr;  // Of Format::kPlugin: the dataset that reads them,
  int32_t max_token_id = -1;  // and the largest of its tokens that may be, once the tokenizer is known.
  std::string warning = {};   // About the choice of files, for the job's log (DatasetFiles).
};

// Whether documents end where no token says it, so that rows have to: conversations, and what comes as tokens.
bool has_pieces(const FileKind& kind);

// A document's text, or why it has none.
struct DocumentText {
  std::string text;
  std::string problem;
  std::optional<std::vector<TextSpan>> labels = {};  // Of a conversation; without them every token is one.
  std::optional<std::vector<int32_t>> tokens = {};   // Of a document that is not text, marked as label_tokens.h says.
};

// Of a row of a conversation.
DocumentText conversation_text(const Chat& chat, std::string_view row);

// The documents of one file, in order.
class DocumentFile {
 public:
  virtual ~DocumentFile() = default;

  // Moves over the next document; false behind the last. Errors: InvalidArgument for damaged data (names the file),
  // or what the disk says.
  virtual absl::StatusOr<bool> next() = 0;

  // Of the document that next() moved over: where it starts, what it says (once), and its name for people,
  // "data.json:17".
  virtual data_files::FilePlace start() const = 0;
  virtual absl::StatusOr<DocumentText> text() = 0;
  virtual std::string name() const = 0;

  // Behind that document.
  virtual data_files::FilePlace place() const = 0;

  // Opens a file at a place that start() or place() gave. Errors: those of next(); NotFound; InvalidArgument when no
  // document can start there (the file has changed); Unimplemented for Parquet without its library.
  static absl::StatusOr<std::unique_ptr<DocumentFile>> open(const std::string& path, const FileKind& kind,
                                                            const data_files::FilePlace& place);
};

// The first file that cannot be entered in the middle since it is compressed; null: none. What a library's dataset
// reads is its own affair.
const std::string* first_compressed(const std::vector<std::string>& files, const FileKind& kind);

// How a kind is called in the names of what is kept beside files: "jsonl"; of a library's dataset with what tells one
// library from another.
std::string kept_name(const FileKind& kind);

// What a document of a kind is called, "line", and what it has to be, "lines have to be JSON objects ...".
std::string document_word(const FileKind& kind);
std::string document_rule(const FileKind& kind);

// What DocumentFile::open() chooses from, by the kind of file.
absl::StatusOr<std::unique_ptr<DocumentFile>> open_json_lines(const std::string& path, const FileKind& kind,
                                                              const data_files::FilePlace& place);
absl::StatusOr<std::unique_ptr<DocumentFile>> open_text(const std::string& path, const FileKind& kind,
                                                        const data_files::FilePlace& place);
absl::StatusOr<std::unique_ptr<DocumentFile>> open_plugin(const std::string& path, const FileKind& kind,
                                                          const data_files::FilePlace& place);

// Reads a few documents of a library's dataset twice, in order and each by its place: a reader that does not find them
// again would be noticed when a job goes on, days later. InvalidArgument: names the file and the place.
absl::Status check_places(const std::string& path, const FileKind& kind);

// Of rows any may be next; one that follows in the same row group is found from where the file is now.
class DocumentRowsFile : public DocumentFile {
 public:
  virtual absl::Status seek(const data_files::FilePlace& place) = 0;
};
absl::StatusOr<std::unique_ptr<DocumentRowsFile>> open_parquet(const std::string& path, const FileKind& kind,
                                                               const data_files::FilePlace& place);

// The rows of each row group of a Parquet file.
absl::StatusOr<std::vector<int64_t>> parquet_row_groups(const std::string& path, const FileKind& kind);

// The error of a reader that met more than `most` malformed documents in a pass, of which this is the `number`th.
// `place`: "data.json:17: not JSON".
absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind);
// The error when a whole pass gave nothing to train on. `reasons`: what was said of its malformed documents, place by
// place.
absl::Status no_documents(std::vector<std::string> reasons);

// What changes when one of the files does: a checksum of their names, sizes and times of change, and the bytes of all.
// Part of the names of what is kept beside data. `more` is what it depends on besides. Errors: what the disk says.
absl::StatusOr<std::string> file_facts(const std::vector<std::string>& files, const std::string& more = "");
// The same of remote files, whose names say which commit they are of.
std::string remote_facts(const std::vector<std::string>& files, const std::string& more);

}  // namespace titan::data
