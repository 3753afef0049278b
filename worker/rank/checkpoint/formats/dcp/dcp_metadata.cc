#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/pickle/reader.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {
namespace {

using pickle::PickleValue;
using ValueKind = PickleValue::Kind;

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata.";
constexpr std::string_view kStorageInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";

constexpr std::pair<std::string_view, c10::ScalarType> kNamedTypes[] = {
    {"float64", c10::ScalarType::Double},    {"float32", c10::ScalarType::Float}, {"float16", c10::ScalarType::Half},
    {"bfloat16", c10::ScalarType::BFloat16}, {"int64", c10::ScalarType::Long},    {"int32", c10::ScalarType::Int},
    {"int16", c10::ScalarType::Short},       {"int8", c10::ScalarType::Char},     {"uint8", c10::ScalarType::Byte},
    {"bool", c10::ScalarType::Bool},
};

class Reading {
 public:
  Reading(const pickle::ParsedPickle& document, const std::string& path) : document_(document), path_(path) {}

  absl::StatusOr<DcpMetadata> run() {
    const PickleValue& root = document_.root();
    TITAN_RETURN_IF_ERROR(is(root, "Metadata", "the whole"));
    TITAN_RETURN_IF_ERROR(read_places(document_.find(root, "storage_data")));
    const PickleValue* entries = document_.find(root, "state_dict_metadata");
    if (entries == nullptr || entries->kind != ValueKind::kDict) return bad("state_dict_metadata", "is not a dict");
    for (size_t i = 0; i + 1 < entries->items.size(); i += 2) {
      const PickleValue& key = document_.at(entries->items[i]);
      if (key.kind != ValueKind::kText) return bad("state_dict_metadata", "has a key that is not a text");
      TITAN_RETURN_IF_ERROR(read_entry(std::string(key.text), document_.at(entries->items[i + 1])));
    }
    return std::move(result_);
  }

 private:
  using Index = std::pair<std::string, std::vector<int64_t>>;  // Name and offsets; an object has no offsets.

  absl::Status bad(const std::string& what, const std::string& why) const {
    return absl::DataLossError(absl::StrCat(path_, ": ", what, " ", why));
  }
  absl::Status is(const PickleValue& value, std::string_view name, const std::string& what) const {
    if (document_.class_of(value) == absl::StrCat(kMetadata, std::string(name))) return absl::OkStatus();
    return bad(what, absl::StrCat("is ", pickle::name(value.kind), " ", std::string(document_.class_of(value)),
                                  ", not ", std::string(name)));
  }

  absl::StatusOr<std::vector<int64_t>> size(const PickleValue* value, const std::string& what) const {
    if (value == nullptr || document_.class_of(*value) != "torch.Size" || value->kind != ValueKind::kObject)
      return bad(what, "has no sizes");
    const PickleValue& arguments = document_.at(value->items[1]);
    std::vector<int64_t> numbers;
    if (arguments.items.empty()) return numbers;
    const PickleValue& tuple = document_.at(arguments.items[0]);
    if (tuple.kind != ValueKind::kTuple || tuple.items.size() > 64) return bad(what, "has sizes that are not a tuple");
    for (const pickle::Id id : tuple.items) {
      const PickleValue& number = document_.at(id);
      if (number.kind != ValueKind::kInt || number.integer < 0)
        return bad(what, "has a size that is not a number of 0 or more");
      numbers.push_back(number.integer);
    }
    return numbers;
  }

  absl::StatusOr<int64_t> integer(const PickleValue& of, std::string_view name, const std::string& what) const {
    const PickleValue* value = document_.find(of, name);
    if (value == nullptr || value->kind != ValueKind::kInt || value->integer < 0)
      return bad(what, absl::StrCat("has no ", std::string(name)));
    return value->integer;
  }

  absl::StatusOr<DcpMetadata::Place> place(const PickleValue& info, const std::string& what) const {
    if (document_.class_of(info) != kStorageInfo) return bad(what, "has no place in a file");
    const PickleValue* file = document_.find(info, "relative_path");
    if (file == nullptr || file->kind != ValueKind::kText) return bad(what, "has no relative_path");
    DcpMetadata::Place found{.file = std::string(file->text)};
    const std::vector<std::string> parts = absl::StrSplit(found.file, '/');
    if (std::any_of(parts.begin(), parts.end(),
                    [](const std::string& part) { return part.empty() || part == "." || part == ".."; }))
      return bad(what, absl::StrCat("lies in \"", found.file, "\", outside of the folder"));
    TITAN_ASSIGN_OR_RETURN(found.offset, integer(info, "offset", what));
    TITAN_ASSIGN_OR_RETURN(found.bytes, integer(info, "length", what));
    if (found.bytes > INT64_MAX - found.offset)
      return bad(what, "has an invalid place in its file (offset and length overflow)");
    const PickleValue* transforms = document_.find(info, "transform_descriptors");
    if (transforms != nullptr && !transforms->items.empty()) {
      const PickleValue& first = document_.at(transforms->items[0]);
      return absl::FailedPreconditionError(absl::StrCat(path_, ": ", what, " was transformed when it was saved (",
                                                        std::string(first.text),
                                                        "): save it again without _extensions"));
    }
    return found;
  }

  absl::Status read_places(const PickleValue* all) {
    if (all == nullptr || all->kind != ValueKind::kDict) return bad("storage_data", "is not a dict");
    for (size_t i = 0; i + 1 < all->items.size(); i += 2) {
      const PickleValue& key = document_.at(all->items[i]);
      TITAN_RETURN_IF_ERROR(is(key, "MetadataIndex", "a key of storage_data"));
      const PickleValue* name = document_.find(key, "fqn");
      if (name == nullptr || name->kind != ValueKind::kText) return bad("a key of storage_data", "has no fqn");
      Index index{std::string(name->text), {}};
      const PickleValue* offset = document_.find(key, "offset");
      if (offset != nullptr && offset->kind != ValueKind::kNone) {
        TITAN_ASSIGN_OR_RETURN(index.second, size(offset, index.first));
      }
      TITAN_ASSIGN_OR_RETURN(places_[index], place(document_.at(all->items[i + 1]), index.first));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<c10::ScalarType> type(const PickleValue& tensor, const std::string& key) const {
    const PickleValue* properties = document_.find(tensor, "properties");
    if (properties == nullptr) return bad(key, "has no properties");
    // Older versions have this class elsewhere, with the same state.
    if (document_.class_of(*properties) != "torch.distributed._shard.sharded_tensor.metadata.TensorProperties")
      TITAN_RETURN_IF_ERROR(is(*properties, "TensorProperties", key));
    // Its state: dtype, layout, requires_grad, memory format, pin_memory.
    if (properties->items.size() < 3) return bad(key, "has properties without a type");
    const PickleValue& state = document_.at(properties->items[2]);
    if (state.kind != ValueKind::kTuple || state.items.size() < 2) return bad(key, "has properties without a type");
    const std::string_view name = document_.class_of(document_.at(state.items[0]));
    if (!name.starts_with("torch.")) return bad(key, "has properties without a type");
    absl::StatusOr<c10::ScalarType> type = dcp_type(name.substr(6));
    if (!type.ok()) return annotate(type.status(), absl::StrCat(path_, ": ", key));
    const PickleValue& layout = document_.at(state.items[1]);
    if (layout.kind == ValueKind::kObject) {
      const PickleValue& arguments = document_.at(layout.items[1]);
      if (arguments.items.size() == 1 && document_.at(arguments.items[0]).text == "torch.strided") return type;
    }
    return absl::FailedPreconditionError(absl::StrCat(path_, ": ", key, " has another layout than torch.strided"));
  }

  absl::Status read_entry(const std::string& key, const PickleValue& entry) {
    if (document_.class_of(entry) == absl::StrCat(kMetadata, "BytesStorageMetadata")) {
      const auto found = places_.find({key, {}});
      if (found == places_.end()) return bad(key, "has no entry in storage_data");
      result_.objects[key] = found->second;
      return absl::OkStatus();
    }
    TITAN_RETURN_IF_ERROR(is(entry, "TensorStorageMetadata", key));
    DcpMetadata::Tensor tensor;
    TITAN_ASSIGN_OR_RETURN(tensor.dtype, type(entry, key));
    TITAN_ASSIGN_OR_RETURN(tensor.shape, size(document_.find(entry, "size"), key));
    if (TensorEntry{.dtype = tensor.dtype, .shape = tensor.shape}.bytes() < 0)
      return bad(key, absl::StrCat("has shape ", shape_text(tensor.shape), ", which is not a valid shape"));
    const PickleValue* chunks = document_.find(entry, "chunks");
    if (chunks == nullptr || chunks->kind != ValueKind::kList) return bad(key, "has no chunks");
    for (const pickle::Id id : chunks->items) TITAN_RETURN_IF_ERROR(read_chunk(key, document_.at(id), tensor));
    std::vector<Box> boxes;
    for (const DcpMetadata::Piece& piece : tensor.pieces) boxes.push_back(piece.box);
    if (const absl::Status covered = check_cover(tensor.shape, boxes); !covered.ok())
      return annotate(covered, absl::StrCat(path_, ": ", key));
    result_.tensors[key] = std::move(tensor);
    return absl::OkStatus();
  }

  absl::Status read_chunk(const std::string& key, const PickleValue& chunk, DcpMetadata::Tensor& tensor) {
    TITAN_RETURN_IF_ERROR(is(chunk, "ChunkStorageMetadata", key));
    DcpMetadata::Piece piece;
    TITAN_ASSIGN_OR_RETURN(piece.box.offset, size(document_.find(chunk, "offsets"), key));
    TITAN_ASSIGN_OR_RETURN(piece.box.shape, size(document_.find(chunk, "sizes"), key));
    if (std::any_of(piece.box.shape.begin(), piece.box.shape.end(), [](int64_t size) { return size == 0; }))
      return absl::OkStatus();
    const auto found = places_.find({key, piece.box.offset});
    if (found == places_.end())
      return bad(key,
                 absl::StrCat("has a piece at ", shape_text(piece.box.offset), " without an entry in storage_data"));
    piece.place = found->second;
    tensor.pieces.push_back(std::move(piece));
    return absl::OkStatus();
  }

  const pickle::ParsedPickle& document_;
  const std::string& path_;
  std::map<Index, DcpMetadata::Place> places_;
  DcpMetadata result_;
};

}  // namespace

absl::StatusOr<c10::ScalarType> dcp_type(std::string_view name) {
  for (const auto& [known, type] : kNamedTypes) {
    if (known == name) return type;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("type ", std::string(name), " is not supported; convert it to bfloat16 or float32 first"));
}

absl::StatusOr<std::string> dcp_type_name(c10::ScalarType type) {
  for (const auto& [name, known] : kNamedTypes) {
    if (known == type) return std::string(name);
  }
  return absl::InvalidArgumentError(absl::StrCat("no name for type ", c10::toString(type), " in PyTorch checkpoints"));
}

absl::StatusOr<DcpMetadata> dcp_metadata(std::string bytes, const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const pickle::ParsedPickle document, pickle::read(std::move(bytes), path));
  return Reading(document, path).run();
}

}  // namespace titan::checkpoint
