// Parquet: a row is a document, its text in one column. Arrow reads it, in a library that is loaded with the first
// file.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "common/storage/installed_file.h"
#include "worker/data/document_file.h"
#include "worker/data/parquet/parquet_column.h"
#include "worker/data/utf8.h"

namespace titan::data {
namespace {

// Where it is, or its name: then the loader looks for it.
std::string parquet_library() {
  const std::string path = storage::installed_file(kParquetLibrary);
  return path.empty() ? kParquetLibrary : path;
}

struct Library {
  OpenParquet open = nullptr;
  OpenParquetRows open_rows = nullptr;
  std::string problem;
};

Library load_library() {
  void* library = ::dlopen(parquet_library().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, nullptr, ::dlerror()};
  auto open = reinterpret_cast<OpenParquet>(::dlsym(library, kParquetSymbol));
  auto open_rows = reinterpret_cast<OpenParquetRows>(::dlsym(library, kParquetRowsSymbol));
  return {open, open_rows, open == nullptr ? absl::StrCat(kParquetLibrary, " is of another version of Titan") : ""};
}

class ParquetFile final : public DocumentRowsFile {
 public:
  ParquetFile(std::string path, std::unique_ptr<ParquetColumn> column, std::shared_ptr<const Chat> chat)
      : path_(std::move(path)), column_(std::move(column)), chat_(std::move(chat)) {}

  absl::Status seek(const FilePlace& place) override {
    const std::string problem = column_->seek(place.offset, place.line);
    if (problem.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", problem, ", where the checkpoint's data position is: the dataset has changed"));
  }

  absl::StatusOr<bool> next() override {
    start_ = place();
    text_ = {};
    switch (column_->next(text_.text)) {
      case ParquetColumn::Read::kText:
        if (!is_utf8(text_.text)) text_ = {"", "not UTF-8"};
        break;
      case ParquetColumn::Read::kNull:
        text_ = {"", "null"};
        break;
      case ParquetColumn::Read::kMalformed:
        text_ = {"", std::exchange(text_.text, {})};
        break;
      case ParquetColumn::Read::kEnd:
        return false;
      case ParquetColumn::Read::kFailed:
        return absl::InvalidArgumentError(
            absl::StrCat(name_of(place()), ": damaged (", text_.text, "); fetch the file again"));
    }
    // The first row of a group is said to be there, not behind the last of the group before.
    start_ = {column_->group(), column_->row() - 1};
    return true;
  }
  FilePlace start() const override { return start_; }
  FilePlace place() const override { return {column_->group(), column_->row()}; }
  absl::StatusOr<DocumentText> text() override {
    if (chat_ != nullptr && text_.problem.empty()) return conversation_text(*chat_, text_.text);
    return std::exchange(text_, {});
  }
  std::string name() const override { return name_of(start_); }

 private:
  std::string name_of(const FilePlace& place) const {
    return absl::StrCat(path_, ", row ", place.line, " of row group ", place.offset);
  }

  const std::string path_;
  const std::unique_ptr<ParquetColumn> column_;
  const std::shared_ptr<const Chat> chat_;
  FilePlace start_;
  DocumentText text_;
};

absl::StatusOr<std::unique_ptr<ParquetColumn>> open_column(const std::string& path, const FileKind& kind) {
  static const Library library = load_library();
  if (::access(path.c_str(), R_OK) != 0) return errno_status(errno, path);
  if (library.open == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(path, ": Parquet is not in this build: install pyarrow (deploy/bootstrap.sh) and build ",
                     kParquetLibrary, ", or make JSON lines of it (", library.problem, ")"));
  }
  std::string problem;
  const bool texts = kind.messages_key.empty();
  std::unique_ptr<ParquetColumn> column(
      texts ? library.open(path, kind.text_key, problem)
            : library.open_rows(path, {kind.messages_key, "tools", "chat_template_kwargs"}, problem));
  if (column != nullptr) return column;
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read as Parquet: ", problem, "; see ",
                                                 texts ? "text_key" : "messages_key", " and format of the dataloader"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentRowsFile>> open_parquet(const std::string& path, const FileKind& kind,
                                                               const FilePlace& place) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<ParquetColumn> column, open_column(path, kind));
  auto file = std::make_unique<ParquetFile>(path, std::move(column), kind.chat);
  TITAN_RETURN_IF_ERROR(file->seek(place));
  return file;
}

absl::StatusOr<std::vector<int64_t>> parquet_row_groups(const std::string& path, const FileKind& kind) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ParquetColumn> column, open_column(path, kind));
  return column->row_groups();
}

}  // namespace titan::data
