#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/formats/dcp/torch_file.h"

namespace titan::checkpoint {
namespace {

constexpr int64_t kMaxMetadata = int64_t{1} << 30;
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
  return read_common(*open_[piece.place.file], saved, type, piece.box, box, out);
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
