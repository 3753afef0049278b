#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/formats/dcp/torch_file.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"

namespace titan::checkpoint {
namespace {

constexpr int64_t kMaxMetadata = int64_t{1} << 30;
constexpr int64_t kWindow = 1 << 20;  // Bytes read at once where short runs are close together.

// Returns whether the tensor is row-major, without gaps.
bool is_packed(const pickle::SavedTensor& saved) {
  int64_t expected = 1;
  for (size_t d = saved.shape.size(); d-- > 0;) {
    if (saved.shape[d] != 1 && saved.strides[d] != expected) return false;
    expected *= saved.shape[d];
  }
  return true;
}

// Reads runs of a range that come in ascending order.
class Window {
 public:
  Window(storage::ReadableFile& file, const pickle::FileRange& range) : file_(file), range_(range) {}

  absl::Status read(int64_t begin, int64_t bytes, char* out) {
    if (bytes >= kWindow) return file_.read(range_.begin + begin, bytes, out);
    if (begin < first_ || begin + bytes > first_ + static_cast<int64_t>(buffer_.size())) {
      first_ = begin;
      buffer_.resize(static_cast<size_t>(std::min(kWindow, range_.bytes - begin)));
      TITAN_RETURN_IF_ERROR(file_.read(range_.begin + begin, static_cast<int64_t>(buffer_.size()), buffer_.data()));
    }
    std::memcpy(out, buffer_.data() + (begin - first_), static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  storage::ReadableFile& file_;
  pickle::FileRange range_;
  std::string buffer_;
  int64_t first_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DcpFolder>> DcpFolder::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<DcpFolder> opened(new DcpFolder(files, folder));
  const std::string path = storage::join_path(folder, kDcpMetadataName);
  TITAN_ASSIGN_OR_RETURN(std::string bytes, storage::read_file(files, path, kMaxMetadata));
  opened->metadata_crc_ = storage::crc32c(bytes.data(), bytes.size());
  TITAN_ASSIGN_OR_RETURN(opened->metadata_, dcp_metadata(std::move(bytes), path));
  return opened;
}

absl::StatusOr<pickle::Archive> DcpFolder::archive(const DcpMetadata::Place& place, const std::string& key) {
  const std::string path = storage::join_path(folder_, place.file);
  std::unique_ptr<storage::ReadableFile>& file = open_[place.file];
  if (file == nullptr) {
    TITAN_ASSIGN_OR_RETURN(file, files_.open(path));
  }
  return pickle::Archive::open(*file, {place.offset, place.bytes}, absl::StrCat(path, ": ", key));
}

absl::Status DcpFolder::read_piece(const DcpMetadata::Tensor& tensor, const DcpMetadata::Piece& piece,
                                   const std::string& key, const Box& box, at::Tensor& out) {
  const std::optional<Box> part = intersect(piece.box, box);
  if (!part || part->elements() == 0) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const pickle::Archive archive, this->archive(piece.place, key));
  TITAN_ASSIGN_OR_RETURN(const pickle::SavedTensor saved, archive.tensor());
  TITAN_ASSIGN_OR_RETURN(const c10::ScalarType type, dcp_type(saved.type));
  if (type != tensor.dtype || saved.shape != piece.box.shape) {
    return absl::DataLossError(absl::StrCat(storage::join_path(folder_, piece.place.file), ": ", key, " is ",
                                            saved.type, " ", shape_text(saved.shape), " there, but ", kDcpMetadataName,
                                            " says ", c10::toString(tensor.dtype), " ", shape_text(piece.box.shape)));
  }
  storage::ReadableFile& file = *open_[piece.place.file];
  const auto item = static_cast<int64_t>(c10::elementSize(type));
  if (!is_packed(saved)) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor there, read_saved(file, saved, type));
    part_of(out, box, *part).copy_(part_of(there, piece.box, *part));
    return absl::OkStatus();
  }
  Window window(file, saved.storage);
  char* const target = static_cast<char*>(out.mutable_data_ptr());
  return for_each_run(*part, piece.box, box, [&](int64_t from, int64_t to, int64_t count) {
    return window.read((saved.offset + from) * item, count * item, target + to * item);
  });
}

absl::StatusOr<at::Tensor> DcpFolder::read(const std::string& key, const Box& box) {
  const auto found = metadata_.tensors.find(key);
  if (found == metadata_.tensors.end()) return absl::NotFoundError(absl::StrCat(folder_, ": no tensor ", key));
  at::Tensor out = at::empty(box.shape, at::TensorOptions().dtype(found->second.dtype));
  for (const DcpMetadata::Piece& piece : found->second.pieces)
    TITAN_RETURN_IF_ERROR(read_piece(found->second, piece, key, box, out));
  return out;
}

absl::StatusOr<nlohmann::json> DcpFolder::object(const std::string& key) {
  const auto found = metadata_.objects.find(key);
  if (found == metadata_.objects.end()) return absl::NotFoundError(absl::StrCat(folder_, ": no object ", key));
  TITAN_ASSIGN_OR_RETURN(const pickle::Archive archive, this->archive(found->second, key));
  return archive.plain();
}

}  // namespace titan::checkpoint
