#include "worker/rank/data/documents/sharding.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {
namespace {

constexpr int64_t kBetweenMarks = 4096;  // Documents between two marks.
constexpr absl::Duration kMaxWaiting = absl::Hours(1);

uint32_t index_sum(const nlohmann::json& json) {
  const std::string text = json.dump();
  return storage::crc32c(text.data(), text.size());
}

}  // namespace

absl::StatusOr<DocumentIndex> DocumentIndex::make(const std::vector<std::string>& files, const FileKind& kind) {
  DocumentIndex index;
  index.marks_.emplace_back();
  for (size_t file = 0; file < files.size(); ++file) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> open, DocumentFile::open(files[file], kind, {}));
    while (true) {
      TITAN_ASSIGN_OR_RETURN(const bool found, open->next());
      if (!found) break;
      if (index.documents_ % kBetweenMarks == 0 && index.documents_ > 0) {
        const data_files::FilePlace start = open->start();
        index.marks_.push_back({static_cast<int64_t>(file), start.offset, start.line, index.documents_});
      }
      ++index.documents_;
    }
  }
  return index;
}

DocumentPosition DocumentIndex::before(int64_t document) const {
  const auto following =
      std::upper_bound(marks_.begin(), marks_.end(), document,
                       [](int64_t number, const DocumentPosition& mark) { return number < mark.document; });
  return following == marks_.begin() ? DocumentPosition{} : *(following - 1);
}

std::string DocumentIndex::to_text() const {
  nlohmann::json json = {{"documents", documents_}, {"marks", nlohmann::json::array()}};
  for (const DocumentPosition& mark : marks_)
    json["marks"].push_back({mark.file, mark.offset, mark.line, mark.document});
  json["crc32c"] = index_sum(json);
  return json.dump() + "\n";
}

absl::StatusOr<DocumentIndex> DocumentIndex::from_text(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto damaged = [] { return absl::DataLossError("damaged"); };
  if (!json.is_object() || !json.contains("crc32c") || text != json.dump() + "\n") return damaged();
  const nlohmann::json sum = json["crc32c"];
  json.erase("crc32c");
  if (sum != index_sum(json)) return damaged();
  DocumentIndex index;
  index.documents_ = json.value("documents", int64_t{0});
  for (const nlohmann::json& mark : json.value("marks", nlohmann::json::array())) {
    if (!mark.is_array() || mark.size() != 4) return damaged();
    index.marks_.push_back({mark[0], mark[1], mark[2], mark[3]});
  }
  return index;
}

absl::StatusOr<DocumentIndex> DocumentIndex::get(const std::vector<std::string>& files, const FileKind& kind,
                                                 const std::string& folder) {
  if (folder.empty()) return make(files, kind);
  TITAN_ASSIGN_OR_RETURN(const std::string facts, file_facts(files));
  storage::Files& disk = storage::posix_files();
  const std::string path = storage::join_path(
      folder, absl::StrCat("documents-", cache_name(kind), kind.blank_lines ? "-parts-" : "-", facts, ".json"));
  const auto kept = [&]() -> absl::StatusOr<DocumentIndex> {
    TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(disk, path));
    return from_text(text);
  };
  if (absl::StatusOr<DocumentIndex> there = kept(); there.ok()) return there;
  (void)disk.make_folders(folder);
  const auto lock = disk.lock(path + ".lock", storage::LockMode::kExclusive, kMaxWaiting);
  // Another process may have made it meanwhile.
  if (absl::StatusOr<DocumentIndex> there = kept(); there.ok()) return there;
  TITAN_ASSIGN_OR_RETURN(DocumentIndex index, make(files, kind));
  (void)storage::atomic_write(disk, path, index.to_text());
  return index;
}

absl::StatusOr<DocumentShare> contiguous_share(int64_t documents, int dp_rank, int dp_size) {
  if (documents < dp_size) {
    return absl::InvalidArgumentError(absl::StrCat("the dataset has ", counted(documents, "document"), " for ", dp_size,
                                                   " data-parallel ranks; in order \"per_rank\" each rank needs one"));
  }
  const int64_t each = documents / dp_size, more = documents % dp_size;
  DocumentShare share{.begin = each * dp_rank + std::min<int64_t>(dp_rank, more)};
  share.end = share.begin + each + (dp_rank < more ? 1 : 0);
  return share;
}

absl::StatusOr<RankShare> split_by_rank(const std::vector<std::string>& files, int dp_rank, int dp_size,
                                        const FileKind& kind, const std::string& index_folder) {
  RankShare mine;
  if (dp_size == 1) {
    mine.files = files;
  } else if (kind.remote == nullptr && first_compressed(files, kind) == nullptr) {
    mine.files = files;
    TITAN_ASSIGN_OR_RETURN(const DocumentIndex index, DocumentIndex::get(files, kind, index_folder));
    TITAN_ASSIGN_OR_RETURN(mine.share, contiguous_share(index.documents(), dp_rank, dp_size));
    mine.start = index.before(mine.share.begin);
  } else if (files.size() % dp_size == 0) {
    for (size_t i = dp_rank; i < files.size(); i += dp_size) mine.files.push_back(files[i]);
  } else {
    mine.files = files;
    mine.share.step = dp_size;
    mine.share.remainder = dp_rank;
  }
  return mine;
}

}  // namespace titan::data
