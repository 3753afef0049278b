#include "worker/rank/data/documents/file_facts.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::data {

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
