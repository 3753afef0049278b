#include "worker/rank/checkpoint/formats/dcp/dcp_writer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"

namespace titan::checkpoint {
namespace {

using pickle::Writer;

constexpr char kClasses[] = "torch.distributed.checkpoint.metadata";
constexpr char kFormatVersion[] = "1.0.0";

void write_properties(Writer& to, c10::ScalarType type) {
  to.object(kClasses, "TensorProperties").mark().name("torch", dcp_type_name(type).value());
  to.name("torch.serialization", "_get_layout").mark().text("torch.strided").tuple().reduce().boolean(false);
  to.name(kClasses, "_MEM_FORMAT_ENCODING").integers({0}).reduce().boolean(false);
  to.tuple().build();
}

void write_tensor(Writer& to, const DcpMetadata::Tensor& tensor) {
  to.object(kClasses, "TensorStorageMetadata").empty_dict().mark();
  write_properties(to.text("properties"), tensor.dtype);
  pickle::torch_size(to.text("size"), tensor.shape);
  to.text("chunks").empty_list().mark();
  for (const DcpMetadata::Piece& piece : tensor.pieces) {
    to.object(kClasses, "ChunkStorageMetadata").empty_dict().mark();
    pickle::torch_size(to.text("offsets"), piece.box.offset);
    pickle::torch_size(to.text("sizes"), piece.box.shape);
    to.set_items().build();
  }
  to.appends().set_items().build();
}

void write_place(Writer& to, const DcpMetadata::Place& place) {
  to.object("torch.distributed.checkpoint.filesystem", "_StorageInfo").empty_dict().mark();
  to.text("relative_path").text(place.file).text("offset").integer(place.offset).text("length").integer(place.bytes);
  to.set_items().build();
}

void write_places(Writer& to, const DcpMetadata& metadata) {
  const auto index = [&](const std::string& key) -> Writer& {
    return to.object(kClasses, "MetadataIndex").empty_dict().mark().text("fqn").text(key);
  };
  for (const auto& [key, place] : metadata.objects) {
    index(key).text("index").none().set_items().build();
    write_place(to, place);
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      pickle::torch_size(index(key).text("offset"), tensor.pieces[i].box.offset);
      to.text("index").integer(static_cast<int64_t>(i)).set_items().build();
      write_place(to, tensor.pieces[i].place);
    }
  }
}

// Writes the names that lead to a key.
void write_path(Writer& to, const std::string& key) {
  to.text(key).mark();
  for (const char* dict : {"optimizer", "lr_scheduler", "dataloader", "train_state"}) {
    const std::string prefix = absl::StrCat(dict, ".");
    if (!absl::StartsWith(key, prefix)) continue;
    to.text(dict).text(key.substr(prefix.size())).tuple();
    return;
  }
  to.text(key).tuple();
}

}  // namespace

std::string dcp_metadata_pickle(const DcpMetadata& metadata) {
  Writer to(2);
  to.object(kClasses, "Metadata").empty_dict().mark();
  to.text("state_dict_metadata").empty_dict().mark();
  for (const auto& [key, place] : metadata.objects) to.text(key).object(kClasses, "BytesStorageMetadata");
  for (const auto& [key, tensor] : metadata.tensors) write_tensor(to.text(key), tensor);
  to.set_items().text("planner_data").empty_dict().mark();
  for (const auto& [key, place] : metadata.objects) write_path(to, key);
  for (const auto& [key, tensor] : metadata.tensors) write_path(to, key);
  to.set_items().text("storage_data").empty_dict().mark();
  write_places(to, metadata);
  to.set_items().text("storage_meta").none().text("version").text(kFormatVersion);
  return to.set_items().build().finish();
}

absl::Status DcpWriter::close() {
  if (file_ == nullptr) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(file_->sync());
  TITAN_RETURN_IF_ERROR(file_->close());
  file_ = nullptr;
  return absl::OkStatus();
}

absl::StatusOr<DcpMetadata::Place> DcpWriter::append(const std::string& archive) {
  const auto bytes = static_cast<int64_t>(archive.size());
  if (file_ != nullptr && bytes_ + bytes > max_file_bytes_) TITAN_RETURN_IF_ERROR(close());
  if (file_ == nullptr) {
    name_ = absl::StrCat("__0_", files_begun_++, ".distcp");
    bytes_ = 0;
    progress_(name_);
    TITAN_ASSIGN_OR_RETURN(file_, files_.create(storage::join_path(folder_, name_)));
  }
  TITAN_RETURN_IF_ERROR(file_->append(archive));
  DcpMetadata::Place place{name_, bytes_, bytes};
  bytes_ += bytes;
  return place;
}

absl::Status DcpWriter::add(const std::string& key, const std::vector<int64_t>& shape, const Box& box,
                            const at::Tensor& piece) {
  DcpMetadata::Tensor& tensor = metadata_.tensors[key];
  tensor.dtype = piece.scalar_type();
  tensor.shape = shape;
  TITAN_ASSIGN_OR_RETURN(const std::string type, dcp_type_name(tensor.dtype));
  const std::string_view bytes(static_cast<const char*>(piece.const_data_ptr()), piece.nbytes());
  TITAN_ASSIGN_OR_RETURN(DcpMetadata::Place place, append(pickle::save_tensor(type, box.shape, bytes)));
  tensor.pieces.push_back({box, std::move(place)});
  return absl::OkStatus();
}

absl::Status DcpWriter::add(const std::string& key, const nlohmann::json& value) {
  TITAN_ASSIGN_OR_RETURN(metadata_.objects[key], append(pickle::save_plain(value)));
  return absl::OkStatus();
}

absl::Status DcpWriter::finish() {
  TITAN_RETURN_IF_ERROR(close());
  return storage::atomic_write(files_, storage::join_path(folder_, kDcpMetadataName), dcp_metadata_pickle(metadata_));
}

}  // namespace titan::checkpoint
