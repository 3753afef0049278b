#include "worker/rank/checkpoint/formats/dcp/torch_file.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {
namespace {

using pickle::PickleValue;

// Returns the dict of tensors in a saved object, or the object itself.
const PickleValue& state_dict(const pickle::ParsedPickle& document) {
  for (const char* name : {"model", "state_dict"}) {
    const PickleValue* inner = document.find(document.root(), name);
    if (inner != nullptr && inner->kind == PickleValue::Kind::kDict) return *inner;
  }
  return document.root();
}

}  // namespace

absl::StatusOr<at::Tensor> read_saved(storage::ReadableFile& file, const pickle::SavedTensor& saved,
                                      c10::ScalarType type) {
  const int64_t items = saved.storage.bytes / static_cast<int64_t>(c10::elementSize(type));
  at::Tensor storage = at::empty({items}, at::TensorOptions().dtype(type));
  TITAN_RETURN_IF_ERROR(file.read(saved.storage.begin, static_cast<int64_t>(storage.nbytes()),
                                  static_cast<char*>(storage.mutable_data_ptr())));
  return storage.as_strided(saved.shape, saved.strides, saved.offset);
}

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::open(storage::Files& files, const std::string& path) {
  std::unique_ptr<TorchFile> opened(new TorchFile(path));
  TITAN_ASSIGN_OR_RETURN(opened->file_, files.open(path));
  TITAN_ASSIGN_OR_RETURN(const pickle::Archive archive,
                         pickle::Archive::open(*opened->file_, {0, opened->file_->size()}, path));
  TITAN_ASSIGN_OR_RETURN(const pickle::ParsedPickle document, archive.pickle());
  const PickleValue& dict = state_dict(document);
  if (dict.kind != PickleValue::Kind::kDict || dict.items.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": holds ", pickle::name(dict.kind), ", not a state dict of names and tensors"));
  }
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& key = document.at(dict.items[i]);
    if (key.kind != PickleValue::Kind::kText)
      return absl::FailedPreconditionError(absl::StrCat(path, ": a key of the state dict is not a text"));
    const std::string name(key.text);
    auto tensor = archive.tensor(document, document.at(dict.items[i + 1]));
    if (!tensor.ok()) return annotate(tensor.status(), name);
    opened->tensors_[name] = *std::move(tensor);
  }
  return opened;
}

absl::StatusOr<at::Tensor> TorchFile::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", name));
  const pickle::SavedTensor& saved = found->second;
  TITAN_ASSIGN_OR_RETURN(const c10::ScalarType type, dcp_type(saved.type));
  TITAN_ASSIGN_OR_RETURN(const at::Tensor tensor, read_saved(*file_, saved, type));
  return tensor.contiguous();
}

}  // namespace titan::checkpoint
