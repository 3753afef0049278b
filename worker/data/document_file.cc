#include "worker/data/document_file.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace titan::data {

absl::StatusOr<std::unique_ptr<DocumentFile>> DocumentFile::open(const std::string& path, const FileKind& kind,
                                                                 const FilePlace& place) {
  switch (kind.format) {
    case Format::kAuto:
    case Format::kJsonLines:
      return open_json_lines(path, kind, place);
    case Format::kText:
      return open_text(path, kind, place);
    case Format::kParquet:
      return open_parquet(path, kind, place);
    case Format::kMegatron:
    case Format::kTitan:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": holds tokens, not text"));
}

DocumentText conversation_text(const Chat& chat, std::string_view row) {
  absl::StatusOr<ChatText> made = chat.text_of(row);
  if (!made.ok()) return {"", std::string(made.status().message())};
  return {std::move(made->text), "", std::move(made->labels)};
}

std::string document_word(const FileKind& kind) {
  if (kind.format == Format::kText) return kind.blank_lines ? "paragraph" : "file";
  return kind.format == Format::kParquet ? "row" : "line";
}

std::string document_rule(const FileKind& kind) {
  if (kind.format == Format::kText) return "text has to be UTF-8";
  if (!kind.messages_key.empty()) {
    return absl::StrCat(document_word(kind), "s need a list \"", kind.messages_key,
                        "\" of messages, each with a role and a content, that the chat template takes");
  }
  if (kind.format == Format::kParquet) return absl::StrCat("rows need UTF-8 in the column \"", kind.text_key, "\"");
  return absl::StrCat("lines have to be JSON objects with a string \"", kind.text_key, "\"");
}

}  // namespace titan::data
