#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/chat/chat.h"
#include "worker/data/data_format.h"
#include "worker/data/remote_files.h"

namespace titan::data {

// A place between two documents of a file. What the numbers count is the kind's: bytes (decompressed) and lines of
// text, row groups and rows of the next one in Parquet.
struct FilePlace {
  int64_t offset = 0;
  int64_t line = 0;

  bool operator==(const FilePlace&) const = default;
};

// How files are read as documents.
struct FileKind {
  Format format = Format::kJsonLines;
  std::string text_key = "text";                  // Of JSON lines and Parquet.
  std::string messages_key = {};                  // The same of conversations; nothing: documents are texts.
  bool train_on_all = false;                      // Of conversations every token is a label.
  bool blank_lines = false;                       // Of plain text: a document ends at a blank line, not with its file.
  int64_t read_ahead = int64_t{1} << 20;          // Bytes of text that are read together.
  std::shared_ptr<RemoteFiles> remote = nullptr;  // Whose files they are; null: this machine's.
  std::shared_ptr<const Chat> chat = nullptr;     // Of messages_key, once the tokenizer is known (with_chat).
};

// A document's text, or why it has none.
struct DocumentText {
  std::string text;
  std::string problem;
  std::optional<std::vector<TextSpan>> labels = {};  // Of a conversation what is to be foretold; of a text all is.
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
  virtual FilePlace start() const = 0;
  virtual absl::StatusOr<DocumentText> text() = 0;
  virtual std::string name() const = 0;

  // Behind that document.
  virtual FilePlace place() const = 0;

  // Opens a file at a place that start() or place() gave. Errors: those of next(); NotFound; InvalidArgument when no
  // document can start there (the file has changed); Unimplemented for Parquet without its library.
  static absl::StatusOr<std::unique_ptr<DocumentFile>> open(const std::string& path, const FileKind& kind,
                                                            const FilePlace& place);
};

// What a document of a kind is called, "line", and what it has to be, "lines have to be JSON objects ...".
std::string document_word(const FileKind& kind);
std::string document_rule(const FileKind& kind);

// The kinds, one a file.
absl::StatusOr<std::unique_ptr<DocumentFile>> open_json_lines(const std::string& path, const FileKind& kind,
                                                              const FilePlace& place);
absl::StatusOr<std::unique_ptr<DocumentFile>> open_text(const std::string& path, const FileKind& kind,
                                                        const FilePlace& place);

// Of rows any may be next; one that follows in the same row group is found from where the file is now.
class DocumentRowsFile : public DocumentFile {
 public:
  virtual absl::Status seek(const FilePlace& place) = 0;
};
absl::StatusOr<std::unique_ptr<DocumentRowsFile>> open_parquet(const std::string& path, const FileKind& kind,
                                                               const FilePlace& place);

// The rows of each row group of a Parquet file.
absl::StatusOr<std::vector<int64_t>> parquet_row_groups(const std::string& path, const FileKind& kind);

}  // namespace titan::data
