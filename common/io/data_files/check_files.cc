#include "common/io/data_files/check_files.h"

#include <numeric>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/megatron_index.h"
#include "common/io/data_files/parquet_library.h"
#include "common/io/data_files/signature.h"
#include "common/io/data_files/token_manifest.h"

namespace titan::data_files {
namespace {

constexpr size_t kMostFiles = 100;

// Plain text is whatever is UTF-8: another encoding or a compressed file shows in its first bytes.
absl::Status check_text(const std::string& file) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::open(file, 0));
  char first[32];
  TITAN_ASSIGN_OR_RETURN(const size_t got, source->read(first, sizeof first));
  const std::string foreign = foreign_bytes(std::string_view(first, got));
  if (foreign.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, " is not text in UTF-8 but ", foreign));
}

// Rows of Parquet, or tokens.
absl::StatusOr<int64_t> amount_in(Format format, const std::string& file, const RowRules& rules) {
  if (format == Format::kTitan) {
    TITAN_ASSIGN_OR_RETURN(const TokenManifest manifest, read_manifest(storage::posix_files(), file));
    return std::accumulate(manifest.shards.begin(), manifest.shards.end(), int64_t{0},
                           [](int64_t sum, const TokenManifest::Shard& shard) { return sum + shard.tokens; });
  }
  if (format == Format::kMegatron) {
    TITAN_ASSIGN_OR_RETURN(const MegatronIndex index, MegatronIndex::open(file));
    return index.tokens();
  }
  const auto column = open_parquet_column(file, rules.text_key, rules.messages_key);
  if (absl::IsUnimplemented(column.status())) return 1;  // As far as can be known here.
  if (!column.ok()) return column.status();
  const std::vector<int64_t> groups = (*column)->row_groups();
  return std::accumulate(groups.begin(), groups.end(), int64_t{0});
}

absl::Status check_headers(const DatasetFiles& files, const RowRules& rules) {
  int64_t amount = 0;
  for (size_t i = 0; i < files.files.size(); ++i) {
    if (i == kMostFiles) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const int64_t part, amount_in(files.format, files.files[i], rules));
    amount += part;
  }
  if (amount > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("holds no document: ", files.files.front(), " has no ",
                                                 holds_tokens(files.format) ? "token" : "row",
                                                 files.files.size() > 1 ? ", nor has any other file" : ""));
}

}  // namespace

absl::Status check_files(const DatasetFiles& files, const RowRules& rules) {
  switch (files.format) {
    case Format::kJsonLines:
      return check_first_rows(files, rules);
    case Format::kText:
      return check_text(files.files.front());
    case Format::kParquet:
    case Format::kMegatron:
    case Format::kTitan:
      return check_headers(files, rules);
    case Format::kPlugin:
    case Format::kAuto:
      break;
  }
  return absl::OkStatus();
}

}  // namespace titan::data_files
