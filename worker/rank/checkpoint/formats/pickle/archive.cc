#include "worker/rank/checkpoint/formats/pickle/archive.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/pickle/plain.h"
#include "worker/rank/checkpoint/formats/pickle/reader.h"
#include "worker/rank/checkpoint/formats/pickle/types.h"
#include "worker/rank/checkpoint/formats/pickle/zip_format.h"

namespace titan::pickle {
namespace {

using Kind = PickleValue::Kind;

constexpr int64_t kMaxDirectory = 1 << 28;

uint64_t number(std::string_view bytes, int64_t at, int64_t size) {
  uint64_t value = 0;
  for (int64_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(at + i)]);
  return value;
}

// Replaces the values that are in the 64-bit extension of a central header.
absl::Status widen(std::string_view extra, std::initializer_list<uint64_t*> values) {
  while (extra.size() >= 4) {
    const uint64_t id = number(extra, 0, 2), size = number(extra, 2, 2);
    if (size > extra.size() - 4) break;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (uint64_t* value : values) {
      if (*value != kIn64) continue;
      if (field.size() < 8) return absl::DataLossError("");
      *value = number(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  for (const uint64_t* value : values) {
    if (*value >> 62 != 0) return absl::DataLossError("");
  }
  return absl::OkStatus();
}

bool integers(const ParsedPickle& document, const PickleValue& tuple, std::vector<int64_t>& out) {
  const PickleValue* values = &tuple;
  if (document.class_of(tuple) == "torch.Size" && tuple.items.size() == 2) {  // The tuple is an argument of its class.
    const PickleValue& arguments = document.at(tuple.items[1]);
    if (arguments.items.size() != 1) return false;
    values = &document.at(arguments.items[0]);
  }
  if (values->kind != Kind::kTuple || values->items.size() > 64) return false;
  for (const Id id : values->items) {
    if (document.at(id).kind != Kind::kInt || document.at(id).integer < 0) return false;
    out.push_back(document.at(id).integer);
  }
  return true;
}

// Returns whether every element lies within the `count` elements of the storage.
bool inside(const SavedTensor& tensor, int64_t count) {
  int64_t last = tensor.offset;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return true;
  }
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    int64_t step = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      return false;
  }
  return last < count;
}

}  // namespace

absl::Status Archive::damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(where_, ": bytes ", range_.begin, " to ", range_.begin + range_.bytes,
                                          " are not an archive of torch.save: ", what));
}

absl::StatusOr<std::string> Archive::read(int64_t offset, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > range_.bytes || bytes > range_.bytes - offset)
    return damaged("it refers to bytes outside of it");
  std::string out(static_cast<size_t>(bytes), '\0');
  TITAN_RETURN_IF_ERROR(file_->read(range_.begin + offset, bytes, out.data()));
  return out;
}

absl::StatusOr<Archive> Archive::open(storage::ReadableFile& file, const FileRange& range, const std::string& where) {
  Archive archive(file, range, where);
  if (range.begin < 0 || range.bytes < 0 || range.begin > file.size() || range.bytes > file.size() - range.begin) {
    return absl::DataLossError(absl::StrCat(where, ": bytes ", range.begin, " to ", range.begin + range.bytes,
                                            " are needed, but the file has ", file.size(), ": it is cut short"));
  }
  TITAN_RETURN_IF_ERROR(archive.read_directory());
  if (archive.entries_.contains("byteorder")) {
    TITAN_ASSIGN_OR_RETURN(const std::string order, archive.text("byteorder"));
    if (order != "little")
      return absl::FailedPreconditionError(
          absl::StrCat(where, ": byte order \"", order, "\"; save it on a little-endian machine"));
  }
  return archive;
}

absl::Status Archive::read_directory() {
  // torch.save writes no comment, so the end record comes last.
  if (range_.bytes < kEndBytes) return damaged("too short");
  TITAN_ASSIGN_OR_RETURN(const std::string end, read(range_.bytes - kEndBytes, kEndBytes));
  if (number(end, 0, 4) != kEndRecord) return damaged("no end record");
  uint64_t bytes = number(end, 12, 4), begin = number(end, 16, 4);
  if (bytes == kIn64 || begin == kIn64 || number(end, 10, 2) == 0xffff) {
    if (range_.bytes < kEndBytes + kLocatorBytes) return damaged("too short");
    TITAN_ASSIGN_OR_RETURN(const std::string locator, read(range_.bytes - kEndBytes - kLocatorBytes, kLocatorBytes));
    if (number(locator, 0, 4) != kLocator64 || number(locator, 8, 8) >> 62 != 0) return damaged("no 64-bit end record");
    TITAN_ASSIGN_OR_RETURN(const std::string end64, read(static_cast<int64_t>(number(locator, 8, 8)), kEnd64Bytes));
    if (number(end64, 0, 4) != kEndRecord64) return damaged("no 64-bit end record");
    bytes = number(end64, 40, 8);
    begin = number(end64, 48, 8);
  }
  if (begin >> 62 != 0 || bytes > kMaxDirectory) return damaged("its directory is invalid");
  TITAN_ASSIGN_OR_RETURN(const std::string directory, read(static_cast<int64_t>(begin), static_cast<int64_t>(bytes)));
  std::string_view left = directory;
  while (!left.empty()) TITAN_RETURN_IF_ERROR(add_entry(left));
  return absl::OkStatus();
}

absl::Status Archive::add_entry(std::string_view& directory) {
  if (directory.size() < kCentralBytes || number(directory, 0, 4) != kCentralHeader)
    return damaged("a damaged directory");
  const uint64_t method = number(directory, 10, 2), name_bytes = number(directory, 28, 2),
                 extra_bytes = number(directory, 30, 2), comment = number(directory, 32, 2);
  uint64_t stored = number(directory, 20, 4), bytes = number(directory, 24, 4), begin = number(directory, 42, 4);
  directory.remove_prefix(kCentralBytes);
  if (name_bytes + extra_bytes + comment > directory.size()) return damaged("a damaged directory");
  std::string name(directory.substr(0, name_bytes));
  if (!widen(directory.substr(name_bytes, extra_bytes), {&bytes, &stored, &begin}).ok())
    return damaged("a damaged directory");
  directory.remove_prefix(name_bytes + extra_bytes + comment);
  if (const size_t slash = name.find('/'); slash != name.npos) name = name.substr(slash + 1);
  if (method != 0 || stored != bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        where_, ": ", name, " is compressed: torch.save does not compress; save it again without compression"));
  }
  if (!entries_.try_emplace(name, FileRange{static_cast<int64_t>(begin), static_cast<int64_t>(bytes)}).second)
    return damaged(absl::StrCat("two entries ", name));
  return absl::OkStatus();
}

absl::StatusOr<FileRange> Archive::data_of(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return damaged(absl::StrCat("it has no ", name));
  const auto [begin, bytes] = found->second;
  TITAN_ASSIGN_OR_RETURN(const std::string header, read(begin, kLocalBytes));
  if (number(header, 0, 4) != kLocalHeader) return damaged(absl::StrCat(name, " does not begin where it should"));
  const int64_t data = begin + kLocalBytes + static_cast<int64_t>(number(header, 26, 2) + number(header, 28, 2));
  if (data > range_.bytes || bytes > range_.bytes - data) return damaged(absl::StrCat(name, " reaches beyond the end"));
  return FileRange{range_.begin + data, bytes};
}

absl::StatusOr<std::string> Archive::text(const std::string& name) const {
  TITAN_ASSIGN_OR_RETURN(const FileRange range, data_of(name));
  return read(range.begin - range_.begin, range.bytes);
}

absl::StatusOr<ParsedPickle> Archive::pickle() const {
  TITAN_ASSIGN_OR_RETURN(std::string bytes, text("data.pkl"));
  return pickle::read(std::move(bytes), where_);
}

absl::StatusOr<SavedTensor> Archive::tensor() const {
  TITAN_ASSIGN_OR_RETURN(const ParsedPickle document, pickle());
  return tensor(document, document.root());
}

absl::StatusOr<SavedTensor> Archive::tensor(const ParsedPickle& document, const PickleValue& value) const {
  const auto no_tensor = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat(where_, ": its data.pkl is not a plain tensor: ", what));
  };
  if (document.class_of(value) == "torch._utils._rebuild_parameter" && value.kind == Kind::kObject &&
      !document.at(value.items[1]).items.empty()) {
    const PickleValue& inner = document.at(document.at(value.items[1]).items[0]);
    if (document.class_of(inner) == "torch._utils._rebuild_tensor_v2") return tensor(document, inner);
  }
  if (value.kind != Kind::kObject || document.class_of(value) != "torch._utils._rebuild_tensor_v2")
    return no_tensor(absl::StrCat("it holds ", name(value.kind), " ", std::string(document.class_of(value))));
  const PickleValue& arguments = document.at(value.items[1]);
  if (arguments.items.size() < 4) return no_tensor("arguments are missing");
  const auto argument = [&](size_t i) -> const PickleValue& { return document.at(arguments.items[i]); };

  SavedTensor tensor;
  if (argument(1).kind != Kind::kInt || argument(1).integer < 0)
    return no_tensor("its offset is not a number of 0 or more");
  tensor.offset = argument(1).integer;
  if (!integers(document, argument(2), tensor.shape) || !integers(document, argument(3), tensor.strides) ||
      tensor.shape.size() != tensor.strides.size()) {
    return no_tensor("its shape and strides are invalid");
  }
  // ("storage", class, key, device, elements)
  const PickleValue& reference = argument(0);
  if (reference.kind != Kind::kPersistent) return no_tensor("it refers to no storage");
  const PickleValue& id = document.at(reference.items[0]);
  if (id.kind != Kind::kTuple || id.items.size() != 5 || document.at(id.items[0]).text != "storage" ||
      document.at(id.items[2]).kind != Kind::kText) {
    return no_tensor("its storage has no name");
  }
  const std::string_view storage = document.class_of(document.at(id.items[1]));
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& one) {
    return storage == absl::StrCat("torch.", std::string(one.storage));
  });
  if (type == std::end(kTypes)) return no_tensor(absl::StrCat("storage ", std::string(storage)));
  tensor.type = type->name;
  TITAN_ASSIGN_OR_RETURN(tensor.storage, data_of(absl::StrCat("data/", std::string(document.at(id.items[2]).text))));
  if (!inside(tensor, tensor.storage.bytes / type->bytes)) return damaged("the tensor is larger than its storage");
  return tensor;
}

absl::StatusOr<nlohmann::json> Archive::plain() const {
  TITAN_ASSIGN_OR_RETURN(const ParsedPickle document, pickle());
  return pickle::plain(document, where_);
}

}  // namespace titan::pickle
