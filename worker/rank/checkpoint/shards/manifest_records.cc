#include "worker/rank/checkpoint/shards/manifest_records.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {

using nlohmann::json;

std::string hex(const std::vector<uint32_t>& values) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(values.size() * 8);
  for (const uint32_t value : values) {
    for (int shift = 28; shift >= 0; shift -= 4) text.push_back(kDigits[value >> shift & 15]);
  }
  return text;
}

absl::StatusOr<std::vector<uint32_t>> unhex(const std::string& text) {
  if (text.size() % 8 != 0) return absl::DataLossError("checksums are not groups of 8 hex digits");
  std::vector<uint32_t> values;
  for (size_t at = 0; at < text.size(); at += 8) {
    uint32_t value = 0;
    for (size_t i = 0; i < 8; ++i) {
      const char c = text[at + i];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return absl::DataLossError("checksums are not hex digits");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<uint32_t> unhex_one(const std::string& text) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<uint32_t> values, unhex(text));
  if (values.size() != 1) return absl::DataLossError("a checksum is not 8 hex digits");
  return values[0];
}

json to_json(const FileRecord& file) {
  json text = {{"name", file.name}, {"bytes", file.bytes}};
  if (file.indexed()) {
    text["index_bytes"] = file.index_bytes;
    text["index_crc32c"] = hex({file.index_crc});
  } else {
    text["header_bytes"] = file.header_bytes;
    text["header_crc32c"] = hex({file.header_crc});
  }
  return text;
}

absl::StatusOr<FileRecord> file_from_json(const json& from) {
  FileRecord file{.name = from.at("name"), .bytes = integer_in(from.at("bytes"))};
  if (from.contains("index_bytes")) {
    file.index_bytes = integer_in(from.at("index_bytes"));
    TITAN_ASSIGN_OR_RETURN(file.index_crc, unhex_one(from.at("index_crc32c")));
  } else {
    file.header_bytes = integer_in(from.at("header_bytes"));
    TITAN_ASSIGN_OR_RETURN(file.header_crc, unhex_one(from.at("header_crc32c")));
  }
  if (file.name.empty() || file.name.find('/') != std::string::npos) {
    return absl::DataLossError(absl::StrCat("\"", file.name, "\" is not a file name"));
  }
  const int64_t known = file.indexed() ? file.index_bytes : file.header_bytes;
  if (known < 8 || known > file.bytes) return absl::DataLossError(file.name + ": invalid sizes");
  return file;
}

json to_json(const TensorRecord& tensor) {
  return {{"key", tensor.key}, {"dtype", safetensors_dtype(tensor.dtype).value()}, {"shape", tensor.shape}};
}

absl::StatusOr<TensorRecord> tensor_from_json(const json& from) {
  TensorRecord tensor{.key = from.at("key"), .shape = integers_in(from.at("shape"))};
  TITAN_ASSIGN_OR_RETURN(tensor.dtype, scalar_type(from.at("dtype").get<std::string>()));
  return tensor;
}

absl::Status check_shape(const TensorRecord& tensor) {
  // Checked before elements are counted: beyond 64 bits, a huge shape can have the count of a small one.
  const bool countable =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t size) { return size < int64_t{1} << 60; });
  if (countable && TensorEntry{.dtype = tensor.dtype, .shape = tensor.shape}.bytes() >= 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(tensor.key, ": shape ", shape_text(tensor.shape), " is not a valid shape"));
}

namespace {

json progressions_json(const std::vector<Progression>& list) {
  json text = json::array();
  for (const Progression& one : list) text.push_back(to_json(one));
  return text;
}

std::vector<Progression> list_from_json(const json& from) {
  std::vector<Progression> list;
  for (const json& one : from) list.push_back(progression_from_json(one));
  return list;
}

Box box_at(const Point& place, const std::vector<int64_t>& shape) { return {{place.begin() + 1, place.end()}, shape}; }

std::vector<Bounds> anywhere(const PlacementRow& row) { return std::vector<Bounds>(row.shape.size() + 1); }

// Checks a row. `ids` are its tensors, which must have one shape that contains the row's pieces.
absl::Status check_row(const PlacementRow& row, const std::vector<TensorRecord>& tensors, size_t files,
                       std::vector<Point>& ids) {
  for (const Progression& one : row.tensors) {
    TITAN_RETURN_IF_ERROR(check_progression(one, {static_cast<int64_t>(tensors.size())}));
  }
  ids = unfold(row.tensors);
  if (ids.empty()) return absl::DataLossError("a row of no tensor");
  const TensorRecord& first = tensors[static_cast<size_t>(ids[0][0])];
  for (size_t i = 1; i < ids.size(); ++i) {
    const TensorRecord& other = tensors[static_cast<size_t>(ids[i][0])];
    if (ids[i] == ids[i - 1] || other.shape != first.shape) {
      return absl::DataLossError(absl::StrCat(other.key, ": in a row with ", first.key));
    }
  }
  if (row.shape.size() != first.shape.size()) return absl::DataLossError(first.key + ": pieces of other dims");
  Point limit = {static_cast<int64_t>(files)};
  for (size_t d = 0; d < row.shape.size(); ++d) {
    if (row.shape[d] < 0 || row.shape[d] > first.shape[d]) {
      return absl::DataLossError(absl::StrCat(first.key, ": piece ", shape_text(row.shape), " lies outside of shape ",
                                              shape_text(first.shape)));
    }
    limit.push_back(first.shape[d] - row.shape[d] + 1);
  }
  for (const Progression& one : row.places) TITAN_RETURN_IF_ERROR(annotate(check_progression(one, limit), first.key));
  return absl::OkStatus();
}

}  // namespace

json to_json(const PlacementRow& row) {
  return json::array({progressions_json(row.tensors), row.shape, progressions_json(row.places)});
}

PlacementRow row_from_json(const json& from) {
  return {list_from_json(from.at(0)), integers_in(from.at(1)), list_from_json(from.at(2))};
}

absl::Status check_placement(const std::vector<PlacementRow>& rows, const std::vector<TensorRecord>& tensors,
                             size_t files) {
  std::vector<std::vector<size_t>> rows_of(tensors.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    std::vector<Point> ids;
    TITAN_RETURN_IF_ERROR(check_row(rows[row], tensors, files, ids));
    for (const Point& id : ids) rows_of[static_cast<size_t>(id[0])].push_back(row);
  }
  // Tensors in the same rows are cut alike, so checking one of them suffices.
  std::map<std::vector<size_t>, size_t> alike;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!alike.emplace(rows_of[i], i).second && !rows_of[i].empty()) continue;
    std::vector<Box> boxes;
    for (const size_t row : rows_of[i]) {
      for (const Point& place : unfold(rows[row].places)) boxes.push_back(box_at(place, rows[row].shape));
    }
    TITAN_RETURN_IF_ERROR(annotate(check_cover(tensors[i].shape, boxes), tensors[i].key));
  }
  return absl::OkStatus();
}

PlacementIndex::PlacementIndex(const std::vector<PlacementRow>& rows, size_t tensors) : rows_(rows), rows_of_(tensors) {
  for (size_t row = 0; row < rows.size(); ++row) {
    tensors_of_.push_back(unfold(rows[row].tensors));
    for (const Point& id : tensors_of_.back()) rows_of_[static_cast<size_t>(id[0])].push_back(row);
  }
}

void PlacementIndex::for_each_piece(size_t tensor, const Box& window,
                                    absl::FunctionRef<void(int64_t file, const Box& piece)> visit) const {
  if (window.elements() == 0) return;
  for (const size_t number : rows_of_[tensor]) {
    const PlacementRow& row = rows_[number];
    if (Box{{}, row.shape}.elements() == 0) continue;
    std::vector<Bounds> within = anywhere(row);
    for (size_t d = 0; d < row.shape.size(); ++d) {
      within[d + 1] = {window.offset[d] - row.shape[d] + 1, window.offset[d] + window.shape[d] - 1};
    }
    for (const Progression& places : row.places) {
      for_each_point(places, within, [&](const Point& place) { visit(place[0], box_at(place, row.shape)); });
    }
  }
}

void PlacementIndex::for_each_piece_in(int64_t file,
                                       absl::FunctionRef<void(size_t tensor, const Box& piece)> visit) const {
  for (size_t number = 0; number < rows_.size(); ++number) {
    const PlacementRow& row = rows_[number];
    std::vector<Bounds> within = anywhere(row);
    within[0] = {file, file};
    for (const Progression& places : row.places) {
      for_each_point(places, within, [&](const Point& place) {
        const Box box = box_at(place, row.shape);
        for (const Point& id : tensors_of_[number]) visit(static_cast<size_t>(id[0]), box);
      });
    }
  }
}

int64_t PlacementIndex::pieces_of(size_t tensor) const {
  int64_t pieces = 0;
  for (const size_t row : rows_of_[tensor]) {
    for (const Progression& places : rows_[row].places) pieces += places.points();
  }
  return pieces;
}

}  // namespace titan::checkpoint
