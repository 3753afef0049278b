#include "common/io/data_files/parquet_library.h"

#include <dlfcn.h>

#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/io/storage/standard_paths.h"

namespace titan::data_files {
namespace {

// Returns the library's path, or its bare name for the loader to find.
std::string parquet_library() {
  const std::string path = storage::installed_file(kParquetLibrary);
  return path.empty() ? kParquetLibrary : path;
}

struct ParquetLibrary {
  OpenParquet open = nullptr;
  OpenParquetRows open_rows = nullptr;
  std::string problem;
};

ParquetLibrary load_parquet_library() {
  void* library = ::dlopen(parquet_library().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, nullptr, ::dlerror()};
  auto open = reinterpret_cast<OpenParquet>(::dlsym(library, kParquetSymbol));
  auto open_rows = reinterpret_cast<OpenParquetRows>(::dlsym(library, kParquetRowsSymbol));
  return {open, open_rows,
          open == nullptr ? absl::StrCat(kParquetLibrary, " belongs to another version of Titan") : ""};
}

// Returns why a file cannot be Parquet, or "". A truncated file does not end as it begins. "PARE" marks encrypted
// files.
absl::StatusOr<std::string> foreign_ends(const std::string& path) {
  constexpr int64_t kMarkBytes = 4;
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::ReadableFile> file, storage::posix_files().open(path));
  if (file->size() < 2 * kMarkBytes) return absl::StrCat("it has ", file->size(), " bytes");
  for (const int64_t at : {int64_t{0}, file->size() - kMarkBytes}) {
    char mark[kMarkBytes];
    TITAN_RETURN_IF_ERROR(file->read(at, kMarkBytes, mark));
    const std::string_view found(mark, kMarkBytes);
    if (found == "PAR1" || found == "PARE") continue;
    return std::string(at == 0 ? "it does not begin with PAR1, so it is another format"
                               : "it does not end with PAR1, so it is truncated; download the file again");
  }
  return "";
}

// Opens a file with a function of the library. `hint` ends the message about a file that the library refuses.
template <typename Open>
absl::StatusOr<std::unique_ptr<ParquetColumn>> open_with(const std::string& path, const Open& open, const char* hint) {
  const auto refused = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read as Parquet: ", problem));
  };
  TITAN_ASSIGN_OR_RETURN(std::string problem, foreign_ends(path));
  if (!problem.empty()) return refused(problem);
  static const ParquetLibrary library = load_parquet_library();
  if (library.open == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(path, ": Parquet is not in this build: install pyarrow (deploy/bootstrap.sh) and build ",
                     kParquetLibrary, ", or convert it to JSON lines (", library.problem, ")"));
  }
  std::unique_ptr<ParquetColumn> column(open(library, problem));
  if (column != nullptr) return column;
  return refused(absl::StrCat(problem, hint));
}

auto values_of(const std::string& path, const std::string& column) {
  return [&](const ParquetLibrary& library, std::string& problem) { return library.open(path, column, problem); };
}

auto rows_of(const std::string& path, const std::vector<std::string>& columns) {
  return [&](const ParquetLibrary& library, std::string& problem) { return library.open_rows(path, columns, problem); };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_column(const std::string& path, const std::string& text_key,
                                                                   const std::string& messages_key) {
  if (messages_key.empty()) {
    return open_with(path, values_of(path, text_key), "; see dataloader.text_key and format");
  }
  const std::vector<std::string> columns = {messages_key, "tools", "chat_template_kwargs"};
  return open_with(path, rows_of(path, columns), "; see dataloader.messages_key and format");
}

absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_values(const std::string& path, const std::string& column) {
  return open_with(path, values_of(path, column), "");
}

absl::StatusOr<std::unique_ptr<ParquetColumn>> open_parquet_rows(const std::string& path,
                                                                 const std::vector<std::string>& columns) {
  return open_with(path, rows_of(path, columns), "");
}

}  // namespace titan::data_files
