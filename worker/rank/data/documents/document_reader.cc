#include "worker/rank/data/documents/document_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

absl::StatusOr<std::optional<Document>> DocumentReader::next() {
  const DocumentShare& share = options_.share;
  while (true) {
    if (share.end.has_value() && position_.document >= *share.end) return std::nullopt;
    TITAN_ASSIGN_OR_RETURN(const bool found, next_document());
    if (!found) return std::nullopt;
    const int64_t number = position_.document++;
    if (number < share.begin || number % share.step != share.remainder) continue;
    TITAN_ASSIGN_OR_RETURN(DocumentText document, open_->text());
    if (document.problem.empty()) {
      const data_files::FilePlace start = open_->start();
      return Document{std::move(document.text),
                      std::move(document.labels),
                      std::move(document.tokens),
                      {.file = position_.file, .offset = start.offset, .line = start.line, .document = number}};
    }
    TITAN_RETURN_IF_ERROR(refuse(document.problem));
  }
}

absl::Status DocumentReader::refuse(const std::string& why) {
  ++bad_lines_;
  const std::string warning = absl::StrCat(open_->name(), ": ", why);
  if (bad_lines_ > options_.max_bad_lines) {
    return too_many_bad_lines(warning, bad_lines_, options_.max_bad_lines, options_.kind);
  }
  if (!read_before_) warnings_.push_back(absl::StrCat(warning, ", skipped"));
  return absl::OkStatus();
}

std::vector<std::string> DocumentReader::take_warnings() { return std::exchange(warnings_, {}); }

// Moves to the next document; false after the last file.
absl::StatusOr<bool> DocumentReader::next_document() {
  while (position_.file < static_cast<int64_t>(options_.files.size())) {
    if (open_ == nullptr) {
      const data_files::FilePlace place{position_.offset, position_.line};
      TITAN_ASSIGN_OR_RETURN(open_, DocumentFile::open(options_.files[position_.file], options_.kind, place));
    }
    TITAN_ASSIGN_OR_RETURN(const bool found, open_->next());
    if (found) {
      const data_files::FilePlace place = open_->place();
      position_.offset = place.offset;
      position_.line = place.line;
      return true;
    }
    open_ = nullptr;
    ++position_.file;
    position_.offset = position_.line = 0;
  }
  return false;
}

absl::Status DocumentReader::seek(const DocumentPosition& position, int64_t bad_lines) {
  if (position.file < 0 || position.file > static_cast<int64_t>(options_.files.size()) || position.offset < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the saved position is in file ", position.file,
                                                   " of the dataset, which has ",
                                                   counted(options_.files.size(), "file")));
  }
  open_ = nullptr;
  position_ = position;
  bad_lines_ = bad_lines;
  if (position.file == static_cast<int64_t>(options_.files.size())) return absl::OkStatus();
  if (position.offset == 0 && position.line == 0) return absl::OkStatus();
  const data_files::FilePlace place{position.offset, position.line};
  TITAN_ASSIGN_OR_RETURN(open_, DocumentFile::open(options_.files[position.file], options_.kind, place));
  return absl::OkStatus();
}

void DocumentReader::rewind() {
  open_ = nullptr;
  position_ = options_.start;
  bad_lines_ = 0;
  read_before_ = true;
}

}  // namespace titan::data
