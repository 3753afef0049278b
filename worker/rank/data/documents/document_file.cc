#include "worker/rank/data/documents/document_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/io/data_files/check_files.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/data/plugin/registry.h"

namespace titan::data {

absl::StatusOr<std::unique_ptr<DocumentFile>> DocumentFile::open(const std::string& path, const FileKind& kind,
                                                                 const data_files::FilePlace& place) {
  switch (kind.format) {
    case data_files::DatasetFormat::kAuto:
    case data_files::DatasetFormat::kJsonLines:
      return open_json_lines(path, kind, place);
    case data_files::DatasetFormat::kText:
      return open_text(path, kind, place);
    case data_files::DatasetFormat::kParquet:
      return open_parquet(path, kind, place);
    case data_files::DatasetFormat::kPlugin:
      return open_plugin(path, kind, place);
    case data_files::DatasetFormat::kMegatron:
    case data_files::DatasetFormat::kTitan:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": holds tokens, not text"));
}

DocumentText conversation_text(const Chat& chat, std::string_view row) {
  absl::StatusOr<ChatText> made = chat.text_of(row);
  if (!made.ok()) return {"", std::string(made.status().message())};
  return {std::move(made->text), "", std::move(made->labels)};
}

bool has_pieces(const FileKind& kind) {
  return !kind.messages_key.empty() || (kind.plugin != nullptr && kind.plugin->content == Content::kTokens);
}

const std::string* first_compressed(const std::vector<std::string>& files, const FileKind& kind) {
  if (kind.plugin != nullptr) return nullptr;
  const auto found = std::find_if(files.begin(), files.end(), data_files::is_compressed);
  return found == files.end() ? nullptr : &*found;
}

std::string cache_name(const FileKind& kind) {
  if (kind.plugin == nullptr) return name(kind.format);
  return absl::StrFormat("%s-%08x", kind.plugin->name, kind.plugin->sum);
}

std::string document_word(const FileKind& kind) {
  if (kind.format == data_files::DatasetFormat::kPlugin) return "document";
  if (kind.format == data_files::DatasetFormat::kText) return kind.blank_lines ? "paragraph" : "file";
  return kind.format == data_files::DatasetFormat::kParquet ? "row" : "line";
}

std::string document_rule(const FileKind& kind) {
  if (kind.format == data_files::DatasetFormat::kText) return "text has to be UTF-8";
  if (!kind.messages_key.empty()) {
    return absl::StrCat(document_word(kind), "s need a list \"", kind.messages_key,
                        "\" of messages, each with a role and a content, that the chat template accepts");
  }
  if (kind.format == data_files::DatasetFormat::kPlugin) {
    return absl::StrCat("the dataset \"", kind.plugin->name, "\" of ", kind.plugin->library,
                        has_pieces(kind)
                            ? " has to return tokens of the job's tokenizer, with one label per token or none"
                            : " has to return UTF-8");
  }
  if (kind.format == data_files::DatasetFormat::kParquet)
    return absl::StrCat("rows need UTF-8 in the column \"", kind.text_key, "\"");
  return absl::StrCat("lines have to be JSON objects with a string \"", kind.text_key, "\"");
}

absl::Status too_many_bad_lines(const std::string& place, int64_t number, int64_t most, const FileKind& kind) {
  return absl::InvalidArgumentError(absl::StrCat(place, "; that is malformed ", document_word(kind), " ", number,
                                                 ", more than dataloader.max_bad_lines = ", most, " (",
                                                 document_rule(kind), ")"));
}

absl::Status no_documents(std::vector<std::string> reasons) {
  for (std::string& reason : reasons) reason = std::string(absl::StripSuffix(reason, ", skipped"));
  return absl::InvalidArgumentError(
      absl::StrCat("the dataset has no document with text for this rank: ",
                   reasons.empty() ? "every line is blank or has an empty text" : data_files::first_reasons(reasons)));
}

absl::StatusOr<std::string> file_facts(const std::vector<std::string>& files, const std::string& more) {
  std::string facts = more;
  int64_t bytes = 0;
  for (const std::string& file : files) {
    struct stat found {};
    if (::stat(file.c_str(), &found) != 0) return errno_status(errno, file);
    absl::StrAppend(&facts, "|", file, ",", found.st_size, ",", found.st_mtim.tv_sec, ",", found.st_mtim.tv_nsec);
    bytes += found.st_size;
  }
  return absl::StrFormat("%08x-%d", storage::crc32c(facts.data(), facts.size()), bytes);
}

std::string remote_facts(const std::vector<std::string>& files, const std::string& more) {
  const std::string facts = absl::StrCat(more, "|", absl::StrJoin(files, "|"));
  return absl::StrFormat("%08x-remote", storage::crc32c(facts.data(), facts.size()));
}

}  // namespace titan::data
