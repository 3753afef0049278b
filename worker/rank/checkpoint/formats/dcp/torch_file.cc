#include "worker/rank/checkpoint/formats/dcp/torch_file.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"

namespace titan::checkpoint {
namespace {

using pickle::PickleValue;

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

absl::Status read_common(storage::ReadableFile& file, const pickle::SavedTensor& saved, c10::ScalarType type,
                         const Box& of, const Box& box, at::Tensor& out) {
  const std::optional<Box> part = intersect(of, box);
  if (!part || part->elements() == 0) return absl::OkStatus();
  if (!is_packed(saved)) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor there, read_saved(file, saved, type));
    part_of(out, box, *part).copy_(part_of(there, of, *part));
    return absl::OkStatus();
  }
  const auto item = static_cast<int64_t>(c10::elementSize(type));
  Window window(file, saved.storage);
  char* const target = static_cast<char*>(out.mutable_data_ptr());
  return for_each_run(*part, of, box, [&](int64_t from, int64_t to, int64_t count) {
    return window.read((saved.offset + from) * item, count * item, target + to * item);
  });
}

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::open(storage::Files& files, const std::string& path,
                                                           const std::function<bool(const std::string& name)>& skip) {
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
    if (skip && skip(name)) continue;
    auto tensor = archive.tensor(document, document.at(dict.items[i + 1]));
    if (!tensor.ok()) return annotate(tensor.status(), name);
    opened->tensors_[name] = *std::move(tensor);
  }
  return opened;
}

absl::StatusOr<at::Tensor> TorchFile::read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", name));
  return read(name, whole(found->second.shape));
}

absl::StatusOr<at::Tensor> TorchFile::read(const std::string& name, const Box& box) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", name));
  const pickle::SavedTensor& saved = found->second;
  TITAN_ASSIGN_OR_RETURN(const c10::ScalarType type, dcp_type(saved.type));
  at::Tensor out = at::empty(box.shape, at::TensorOptions().dtype(type));
  const absl::Status read = read_common(*file_, saved, type, whole(saved.shape), box, out);
  if (!read.ok()) return annotate(read, absl::StrCat(path_, ": ", name));
  return out;
}

}  // namespace titan::checkpoint
