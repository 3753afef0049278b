// Reads Megatron-LM's indexed datasets. NAME.bin holds only tokens. NAME.idx begins with "MMIDIDX\0\0", the version (8
// bytes), the token type (1), the numbers of sequences and of document borders (8 each). Then follow the sequences'
// lengths in tokens (4 bytes each) and their byte offsets in NAME.bin (8 each), and the document borders as sequence
// numbers (8 each).
#include "common/io/data_files/megatron_index.h"

#include <cstring>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"

namespace titan::data_files {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeaderBytes = 34, kMaxSequences = int64_t{1} << 40;

// Returns the bytes per token of a type; 0 for an invalid type.
int64_t width_of(uint8_t kind) {
  constexpr int64_t kWidths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};  // u8, i8, i16, i32, i64, f64, f32, u16.
  return kind < std::size(kWidths) ? kWidths[kind] : 0;
}

template <typename T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

MegatronIndex::MegatronIndex(const std::string& path)
    : path_(path), bin_path_(absl::StrCat(absl::StripSuffix(path, ".idx"), ".bin")) {}

absl::StatusOr<MegatronIndex> MegatronIndex::open(const std::string& path) {
  MegatronIndex index(path);
  storage::Files& files = storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(index.index_, files.open(path));
  TITAN_ASSIGN_OR_RETURN(index.bin_, files.open(index.bin_path_));
  TITAN_RETURN_IF_ERROR(index.read_header());
  TITAN_RETURN_IF_ERROR(index.check_ends());
  return index;
}

absl::StatusOr<int64_t> MegatronIndex::document_begin(int64_t document) {
  TITAN_ASSIGN_OR_RETURN(const int64_t sequence, border(document));
  return sequence_begin(sequence);
}

template <typename T>
absl::StatusOr<T> MegatronIndex::number(int64_t at) {
  T value = 0;
  TITAN_RETURN_IF_ERROR(index_->read(at, sizeof value, reinterpret_cast<char*>(&value)));
  return value;
}

absl::Status MegatronIndex::verify() {
  int64_t before = 0;
  for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
    TITAN_ASSIGN_OR_RETURN(const int64_t begin, sequence_begin(sequence));
    if (begin != before) return unfit(absl::StrCat("sequence ", sequence, " does not begin where the one before ends"));
    TITAN_ASSIGN_OR_RETURN(const int32_t length, number<int32_t>(kHeaderBytes + 4 * sequence));
    before += length;
  }
  int64_t last = 0;
  for (int64_t document = 0; document < borders_; ++document) {
    TITAN_ASSIGN_OR_RETURN(const int64_t sequence, border(document));
    if (sequence < last) return unfit(absl::StrCat("document ", document, " begins before the one before"));
    last = sequence;
  }
  return absl::OkStatus();
}

absl::Status MegatronIndex::unfit(absl::string_view why) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", why, "; preprocess the data again"));
}

absl::Status MegatronIndex::read_header() {
  char header[kHeaderBytes];
  if (index_->size() < kHeaderBytes) return unfit("is truncated");
  TITAN_RETURN_IF_ERROR(index_->read(0, kHeaderBytes, header));
  if (std::string_view(header, kMagic.size()) != kMagic)
    return unfit("is not an index of Megatron-LM's data (MMIDIDX)");
  if (const auto version = load<uint64_t>(header + 9); version != 1) {
    return unfit(absl::StrCat("has version ", version, ", and only 1 is supported"));
  }
  kind_ = load<uint8_t>(header + 17);
  width_ = width_of(kind_);
  if (width_ == 0)
    return unfit(absl::StrCat("has tokens of kind ", kind_, ", which is not an integer of up to 8 bytes"));
  sequences_ = load<int64_t>(header + 18);
  borders_ = load<int64_t>(header + 26);
  if (sequences_ < 0 || sequences_ > kMaxSequences || borders_ < 1 || borders_ > kMaxSequences) {
    return unfit(absl::StrCat("counts ", sequences_, " sequences and ", borders_, " document borders"));
  }
  const int64_t size = kHeaderBytes + 12 * sequences_ + 8 * borders_;
  if (index_->size() == size) return absl::OkStatus();
  return unfit(absl::StrCat("has ", index_->size(), " bytes and needs ", size, " (sequence modes are not supported)"));
}

// Checks only where documents and sequences begin and end, without reading the whole index.
absl::Status MegatronIndex::check_ends() {
  TITAN_ASSIGN_OR_RETURN(const int64_t first, border(0));
  TITAN_ASSIGN_OR_RETURN(const int64_t last, border(borders_ - 1));
  if (first != 0 || last != sequences_) return unfit("its documents do not hold all of its sequences");
  int64_t end = 0;
  if (sequences_ > 0) {
    TITAN_ASSIGN_OR_RETURN(const int64_t begin, sequence_begin(0));
    if (begin != 0) return unfit("its first sequence does not begin at byte 0");
    TITAN_ASSIGN_OR_RETURN(end, sequence_begin(sequences_ - 1));
    TITAN_ASSIGN_OR_RETURN(const int32_t length, number<int32_t>(kHeaderBytes + 4 * (sequences_ - 1)));
    if (length < 0) return unfit("its last sequence has a length below 0");
    end += length;
  }
  if (end * width_ == bin_->size()) return absl::OkStatus();
  return unfit(absl::StrCat("ends at byte ", end * width_, " of ", bin_path_, ", which has ", bin_->size()));
}

absl::StatusOr<int64_t> MegatronIndex::border(int64_t document) {
  TITAN_ASSIGN_OR_RETURN(const int64_t sequence, number<int64_t>(kHeaderBytes + 12 * sequences_ + 8 * document));
  if (sequence >= 0 && sequence <= sequences_) return sequence;
  return unfit(absl::StrCat("document ", document, " begins at sequence ", sequence, " of ", sequences_));
}

absl::StatusOr<int64_t> MegatronIndex::sequence_begin(int64_t sequence) {
  if (sequence == sequences_) return tokens();
  TITAN_ASSIGN_OR_RETURN(const int64_t byte, number<int64_t>(kHeaderBytes + 4 * sequences_ + 8 * sequence));
  if (byte >= 0 && byte <= bin_->size() && byte % width_ == 0) return byte / width_;
  return unfit(absl::StrCat("sequence ", sequence, " begins at byte ", byte, " of ", bin_->size()));
}

}  // namespace titan::data_files
