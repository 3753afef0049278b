#pragma once

// Reads the headers of a tar archive: which files it holds, and where their bytes lie. This is a separate reader, and
// not libarchive, because samples are read in any order: their positions in the archive are needed, which libarchive
// does not report, and damage has to be named with its byte.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data {

// A member of an archive. All positions count bytes of the archive.
struct TarMember {
  std::string name;
  int64_t begin = 0;   // Its first header: its own, or one that extends its own.
  int64_t offset = 0;  // Its content.
  int64_t size = 0;    // Bytes of its content.
  int64_t end = 0;     // The next header, after the padding.
  bool is_file = false;
};

// The members of an archive, or of a part that begins and ends between members. Reads POSIX ustar and PAX, GNU's long
// names and sizes, and the format before POSIX. The rules are those of Python's tarfile, except that damage is an error
// anywhere: tarfile ends silently at a damaged header that is not the first.
class TarHeaders {
 public:
  // Fills `out` with `bytes` bytes from `offset` of the archive.
  using ReadAt = std::function<absl::Status(int64_t offset, int64_t bytes, char* out)>;
  // Reads the archive's bytes [begin, end). `path` is for messages.
  TarHeaders(std::string path, int64_t begin, int64_t end, ReadAt read);

  // Moves to the next member; false after the last. Errors: those of `read`; DataLoss for an archive that ends within a
  // member, whose `begin` is set, and InvalidArgument for a damaged one (both name the file and the byte), and for
  // sparse members.
  absl::StatusOr<bool> next(TarMember& member);

  // Returns whether the archive ended with a block of zeros, as writers of tar leave it. Without one it may be
  // truncated between two members.
  bool has_end_mark() const { return has_end_mark_; }

 private:
  struct Header;
  // The facts of the next member that earlier headers state.
  struct Extension {
    std::string name;
    int64_t size = -1;  // -1: the member's own header states it.
  };
  absl::StatusOr<Header> read_header(bool& is_zero);
  absl::StatusOr<std::string> read_extension(const Header& header);
  absl::Status extend(const Header& header, Extension& extension);
  absl::Status take_records(const std::string& records, bool global, Extension& extension);
  absl::Status place(const Header& header, const Extension& extension, TarMember& member);
  absl::Status damaged(int64_t at, const std::string& what) const;
  absl::Status truncated(int64_t at, const std::string& what) const;

  const std::string path_;
  const int64_t begin_, end_;
  const ReadAt read_;
  int64_t at_;  // The next header.
  bool has_end_mark_ = false;
};

}  // namespace titan::data
