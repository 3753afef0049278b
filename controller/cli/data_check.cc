#include "controller/cli/data_check.h"

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config/assets.h"
#include "common/data_files/byte_source.h"
#include "common/data_files/data_format.h"
#include "common/data_files/datasets.h"
#include "common/data_files/first_rows.h"
#include "common/data_files/signature.h"
#include "common/hub/dataset_path.h"

namespace titan::cli {
namespace {

// As the ranks say it, without the path, which stands before it here.
std::string without_path(const absl::Status& status, const std::string& path) {
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat("dataset_path ", path, ": "));
  absl::ConsumePrefix(&message, absl::StrCat(path, ": "));
  return std::string(message);
}

std::optional<DataProblem> problem_of(const absl::Status& status, const std::string& path) {
  if (status.ok()) return std::nullopt;
  return DataProblem{without_path(status, path), false};
}

// Plain text is whatever is UTF-8: another encoding or a compressed file shows in its first bytes.
std::optional<DataProblem> check_text(const std::string& file) {
  const auto source = data::ByteSource::open(file, 0);
  if (!source.ok()) return problem_of(source.status(), "");
  char first[32];
  const absl::StatusOr<size_t> got = (*source)->read(first, sizeof first);
  if (!got.ok()) return problem_of(got.status(), "");
  const std::string foreign = data::foreign_bytes(std::string_view(first, *got));
  if (foreign.empty()) return std::nullopt;
  return DataProblem{absl::StrCat(file, " is not text in UTF-8 but ", foreign)};
}

std::optional<DataProblem> check_listed(const std::string& path) {
  const absl::StatusOr<data::ListedFiles> listed = data::list_files(path);
  if (listed.ok()) return std::nullopt;
  return DataProblem{without_path(listed.status(), path), absl::IsNotFound(listed.status())};
}

}  // namespace

std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoader& settings) {
  if (path.empty() || hub::is_hub_path(path)) return std::nullopt;
  if (auto missing = check_listed(path); missing || !config::is_titans_dataset(dataset)) return missing;
  const data::Format format = data::format_from_name(settings.format).value_or(data::Format::kAuto);
  const absl::StatusOr<data::DatasetFiles> found = data::dataset_files(dataset, path, format);
  if (!found.ok()) return problem_of(found.status(), path);
  if (found->format == data::Format::kText) return check_text(found->files.front());
  if (found->format != data::Format::kJsonLines) return std::nullopt;
  return problem_of(data::check_first_rows(*found, {.text_key = settings.text_key,
                                                    .messages_key = settings.messages_key,
                                                    .train_on_all = settings.train_on == "all",
                                                    .max_bad_lines = settings.max_bad_lines}),
                    path);
}

}  // namespace titan::cli
