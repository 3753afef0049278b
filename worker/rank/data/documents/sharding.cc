#include "worker/rank/data/documents/sharding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/counted.h"
#include "worker/rank/data/documents/document_index.h"

namespace titan::data {
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
