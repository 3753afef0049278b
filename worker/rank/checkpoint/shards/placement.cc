#include "worker/rank/checkpoint/shards/placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

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

// The row's numbers of tensors, of one shape in which its pieces lie.
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
  // Tensors of the same rows are cut alike: one of them stands for all.
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

Placement::Placement(const std::vector<PlacementRow>& rows, size_t tensors) : rows_(rows), rows_of_(tensors) {
  for (size_t row = 0; row < rows.size(); ++row) {
    tensors_of_.push_back(unfold(rows[row].tensors));
    for (const Point& id : tensors_of_.back()) rows_of_[static_cast<size_t>(id[0])].push_back(row);
  }
}

void Placement::for_each_piece(size_t tensor, const Box& window,
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

void Placement::for_each_piece_in(int64_t file, absl::FunctionRef<void(size_t tensor, const Box& piece)> visit) const {
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

int64_t Placement::pieces_of(size_t tensor) const {
  int64_t pieces = 0;
  for (const size_t row : rows_of_[tensor]) {
    for (const Progression& places : rows_[row].places) pieces += places.points();
  }
  return pieces;
}

}  // namespace titan::checkpoint
