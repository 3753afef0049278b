#include "worker/rank/checkpoint/shards/written_step.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

// Joins rows that have the same tensors and the same shape of pieces.
class RowSet {
 public:
  // `files`: number of files before those of the row.
  void add(std::vector<Progression> tensors, const PlacementRow& row, int64_t files) {
    std::vector<Point>& places = places_[{std::move(tensors), row.shape}];
    for (Point& place : unfold(row.places)) {
      place[0] += files;
      places.push_back(std::move(place));
    }
  }
  std::vector<PlacementRow> rows() {
    std::vector<PlacementRow> rows;
    for (auto& [key, places] : places_) rows.push_back({key.first, key.second, fold(std::move(places))});
    return rows;
  }

 private:
  std::map<std::pair<std::vector<Progression>, std::vector<int64_t>>, std::vector<Point>> places_;
};

absl::Status disagreement(const std::string& key) {
  return absl::InternalError(absl::StrCat("ranks disagree about the type or shape of ", key));
}

// Returns the FNV-1a hash. Together with a CRC, it distinguishes the tables of one job.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Returns the tensors of all tables, by key.
absl::StatusOr<std::map<std::string, TensorRecord>> unite(const WrittenStep& report,
                                                          const std::map<std::string, TensorTable>& tables) {
  std::map<std::string, TensorRecord> all;
  for (const auto& [name, rows] : report.rows) {
    const auto table = tables.find(name);
    if (table == tables.end()) return absl::InternalError("a rank's table of tensors is missing");
    for (const TensorRecord& tensor : table->second) {
      const auto [known, fresh] = all.emplace(tensor.key, tensor);
      if (!fresh && (known->second.dtype != tensor.dtype || known->second.shape != tensor.shape)) {
        return disagreement(tensor.key);
      }
    }
  }
  return all;
}

// Adds the rows of a table, with its tensors renumbered by `number`.
absl::Status renumber(const std::vector<PlacementRow>& rows, const TensorTable& table,
                      const std::map<std::string, int64_t>& number, RowSet& into) {
  for (const PlacementRow& row : rows) {
    for (const Progression& one : row.tensors) {
      TITAN_RETURN_IF_ERROR(check_progression(one, {static_cast<int64_t>(table.size())}));
    }
    std::vector<Point> ids = unfold(row.tensors);
    for (Point& id : ids) id[0] = number.at(table[static_cast<size_t>(id[0])].key);
    into.add(fold(std::move(ids)), row, 0);
  }
  return absl::OkStatus();
}

}  // namespace

std::string table_text(const TensorTable& table) {
  json text = json::array();
  for (const TensorRecord& tensor : table) text.push_back(to_json(tensor));
  return text.dump();
}

std::string table_name(const std::string& text) {
  return absl::StrFormat("%016x%08x", hash_of(text), storage::crc32c(text.data(), text.size()));
}

absl::StatusOr<TensorTable> table_from_text(const std::string& text) {
  try {
    TensorTable table;
    for (const json& tensor : json::parse(text)) {
      TITAN_ASSIGN_OR_RETURN(TensorRecord record, tensor_from_json(tensor));
      table.push_back(std::move(record));
    }
    return table;
  } catch (const json::exception& error) {
    return absl::InternalError(absl::StrCat("a rank's list of tensors cannot be read: ", error.what()));
  }
}

json to_json(const WrittenStep& report) {
  json files = json::array(), rows = json::object();
  for (const FileRecord& file : report.files) files.push_back(to_json(file));
  for (const auto& [table, list] : report.rows) {
    for (const PlacementRow& row : list) rows[table].push_back(to_json(row));
  }
  return {{"files", std::move(files)}, {"rows", std::move(rows)}, {"per_rank", report.per_rank}};
}

absl::StatusOr<WrittenStep> report_from_json(const json& from) {
  const auto unreadable = [](const std::string& why) {
    return absl::InternalError(absl::StrCat("a rank's report on its shard cannot be read: ", why));
  };
  try {
    WrittenStep report;
    for (const json& file : from.at("files")) {
      const auto record = file_from_json(file);
      if (!record.ok()) return unreadable(std::string(record.status().message()));
      report.files.push_back(*record);
    }
    for (const auto& [table, rows] : from.at("rows").items()) {
      for (const json& text : rows) {
        PlacementRow row = row_from_json(text);
        Point limit(row.shape.size() + 1, std::numeric_limits<int64_t>::max());
        limit[0] = static_cast<int64_t>(report.files.size());
        for (const Progression& one : row.places) {
          if (const absl::Status bad = check_progression(one, limit); !bad.ok())
            return unreadable(std::string(bad.message()));
        }
        report.rows[table].push_back(std::move(row));
      }
    }
    report.per_rank = from.at("per_rank").get<std::vector<json>>();
    return report;
  } catch (const json::exception& error) {
    return unreadable(error.what());
  }
}

absl::StatusOr<WrittenStep> report_of(const WrittenShard& shard, json per_rank, TensorTable& table) {
  WrittenStep report;
  report.per_rank.push_back(std::move(per_rank));
  table.clear();
  if (!shard.has_file) return report;
  report.files.push_back(shard.file);
  std::map<std::string, const PieceRecord*> by_key;
  for (const PieceRecord& piece : shard.pieces) {
    const auto [known, fresh] = by_key.emplace(piece.key, &piece);
    if (known->second->dtype != piece.dtype || known->second->shape != piece.shape) return disagreement(piece.key);
  }
  std::map<std::string, int64_t> number;
  for (const auto& [key, piece] : by_key) {
    number[key] = static_cast<int64_t>(table.size());
    table.push_back({.key = key, .dtype = piece->dtype, .shape = piece->shape});
  }
  // Tensors that are cut alike share a row: they have one shape, and the same piece here.
  std::map<std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>>, std::vector<Point>> alike;
  for (const PieceRecord& piece : shard.pieces) {
    alike[{piece.shape, piece.box.shape, piece.box.offset}].push_back({number.at(piece.key)});
  }
  RowSet rows;
  for (auto& [key, ids] : alike) {
    Point place = {0};
    place.insert(place.end(), std::get<2>(key).begin(), std::get<2>(key).end());
    rows.add(fold(std::move(ids)), {.shape = std::get<1>(key), .places = {{.base = std::move(place)}}}, 0);
  }
  report.rows[table_name(table_text(table))] = rows.rows();
  return report;
}

WrittenStep join(std::vector<WrittenStep> reports) {
  WrittenStep joined;
  std::map<std::string, RowSet> rows;
  for (WrittenStep& report : reports) {
    const auto files = static_cast<int64_t>(joined.files.size());
    for (const auto& [table, list] : report.rows) {
      for (const PlacementRow& row : list) rows[table].add(row.tensors, row, files);
    }
    std::move(report.files.begin(), report.files.end(), std::back_inserter(joined.files));
    std::move(report.per_rank.begin(), report.per_rank.end(), std::back_inserter(joined.per_rank));
  }
  for (auto& [table, set] : rows) joined.rows[table] = set.rows();
  return joined;
}

absl::Status complete(WrittenStep report, const std::map<std::string, TensorTable>& tables, Manifest& manifest) {
  TITAN_ASSIGN_OR_RETURN(auto all, unite(report, tables));
  std::map<std::string, int64_t> number;
  for (auto& [key, tensor] : all) {
    number[key] = static_cast<int64_t>(manifest.tensors.size());
    manifest.tensors.push_back(std::move(tensor));
  }
  RowSet rows;
  absl::Status status;
  for (const auto& [name, list] : report.rows) {
    if (status.ok()) status = renumber(list, tables.at(name), number, rows);
  }
  manifest.rows = rows.rows();
  manifest.files = std::move(report.files);
  manifest.per_rank = std::move(report.per_rank);
  if (status.ok()) status = check(manifest);
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("the ranks' slices do not cover the tensors: ", status.message()));
}

absl::Status complete(const std::vector<WrittenShard>& shards, Manifest& manifest) {
  std::map<std::string, TensorTable> tables;
  std::vector<WrittenStep> reports;
  for (const WrittenShard& shard : shards) {
    TensorTable table;
    TITAN_ASSIGN_OR_RETURN(WrittenStep report, report_of(shard, nullptr, table));
    if (!report.rows.empty()) tables[report.rows.begin()->first] = std::move(table);
    reports.push_back(std::move(report));
  }
  return complete(join(std::move(reports)), tables, manifest);
}

}  // namespace titan::checkpoint
