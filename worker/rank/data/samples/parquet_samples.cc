// Samples in Parquet, as Hugging Face's datasets writes them: a column of images, which are structs {bytes, path} or
// plain bytes, and a column of captions, which are texts or lists of texts. Interleaved samples have the columns
// "images" and "texts", lists of images and of texts. A sample's key is its row's number in the file; its fields are
// the columns that were read, without images.
//
// A row is reached by passing the pages (images) or rows (captions, lists) before it in its row group, so that shuffled
// data costs about half a row group for each sample. Several readers of a file remain open, so that threads that read
// consecutive rows need not start again.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json/value.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/data_files/parquet_library.h"
#include "worker/rank/data/samples/interleaved.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {
namespace {

using data_files::ParquetColumn;
using Column = std::unique_ptr<ParquetColumn>;

// The columns of a file, at one place. Without `images` the rows hold everything.
struct Columns {
  Column images, rows;
};

// Opens one of the columns that may hold images.
absl::StatusOr<Column> open_images(const std::string& path, const SampleKind& kind) {
  std::vector<std::string> names = {"image", "jpg"};
  if (!kind.image_key.empty()) names = {kind.image_key};
  absl::Status first;
  for (const std::string& name : names) {
    for (const char* field : {"", ".bytes"}) {
      absl::StatusOr<Column> column = data_files::open_parquet_values(path, absl::StrCat(name, field));
      if (column.ok() || !absl::IsInvalidArgument(column.status())) return column;
      if (first.ok()) first = column.status();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(first.message(), "; images are bytes, or structs with a field \"bytes\""));
}

absl::StatusOr<Column> open_captions(const std::string& path, const SampleKind& kind) {
  if (!kind.caption_key.empty()) return data_files::open_parquet_rows(path, {kind.caption_key});
  absl::Status first;
  for (const char* name : {"caption", "text", "txt"}) {
    absl::StatusOr<Column> column = data_files::open_parquet_rows(path, {name});
    if (column.ok() || !absl::IsInvalidArgument(column.status())) return column;
    if (first.ok()) first = column.status();
  }
  return first;
}

absl::StatusOr<Columns> open_reader(const std::string& path, const SampleKind& kind) {
  Columns reader;
  if (kind.layout == SampleLayout::kInterleaved) {
    TITAN_ASSIGN_OR_RETURN(reader.rows, data_files::open_parquet_rows(path, {"images", "texts"}));
    return reader;
  }
  TITAN_ASSIGN_OR_RETURN(reader.images, open_images(path, kind));
  TITAN_ASSIGN_OR_RETURN(reader.rows, open_captions(path, kind));
  return reader;
}

// Returns the bytes of an image in a list: a struct with bytes, or bytes.
std::optional<std::string> listed_image(const nlohmann::ordered_json& value, std::string& problem) {
  const auto bytes = value.is_object() ? value.find("bytes") : value.end();
  const nlohmann::ordered_json& content = value.is_object() && bytes != value.end() ? *bytes : value;
  if (content.is_string()) return content.get<std::string>();
  problem = "an image without bytes";
  return std::nullopt;
}

class ParquetSamples final : public SampleFile {
 public:
  ParquetSamples(std::string path, SampleKind kind, Columns first)
      : path_(std::move(path)), kind_(std::move(kind)), firsts_(1, 0) {
    for (const int64_t rows : first.rows->row_groups()) firsts_.push_back(firsts_.back() + rows);
    idle_.push_back(std::move(first));
  }

  int64_t samples() const override { return firsts_.back(); }

  absl::StatusOr<Sample> read(int64_t number) override {
    const auto following = std::upper_bound(firsts_.begin(), firsts_.end() - 1, number);  // Groups may be empty.
    const int64_t group = following - firsts_.begin() - 1, row = number - firsts_[static_cast<size_t>(group)];
    TITAN_ASSIGN_OR_RETURN(Columns reader, take_reader(group, row));
    Sample sample{.key = absl::StrCat(number), .name = absl::StrCat(path_, ": row ", number)};
    TITAN_RETURN_IF_ERROR(fill(reader, group, row, sample));  // A reader that failed is not used again.
    if (!sample.problem.empty()) sample.parts.clear();
    sync::Lock lock(mutex_);
    idle_.push_back(std::move(reader));
    return sample;
  }

 private:
  // Returns the idle reader with the fewest rows to pass, or else one that has to start again, or a new one.
  absl::StatusOr<Columns> take_reader(int64_t group, int64_t row) {
    {
      sync::Lock lock(mutex_);
      auto best = idle_.end();
      for (auto one = idle_.begin(); one != idle_.end(); ++one) {
        const bool before = one->rows->group() == group && one->rows->row() <= row;
        if (before && (best == idle_.end() || best->rows->row() < one->rows->row())) best = one;
      }
      if (best == idle_.end()) best = idle_.begin();
      if (best != idle_.end()) {
        Columns found = std::move(*best);
        idle_.erase(best);
        return found;
      }
    }
    return open_reader(path_, kind_);
  }

  absl::Status fill(Columns& reader, int64_t group, int64_t row, Sample& sample) const {
    std::string image, text;
    if (reader.images != nullptr) {
      TITAN_RETURN_IF_ERROR(read_value(*reader.images, group, row, image, sample));
      if (!sample.problem.empty()) sample.problem = absl::StrCat("its image is ", sample.problem);
    }
    std::string problem = std::exchange(sample.problem, "");
    TITAN_RETURN_IF_ERROR(read_value(*reader.rows, group, row, text, sample));
    if (sample.problem.empty()) sample.fields = json::parse(text).value_or(nlohmann::ordered_json());
    if (!problem.empty()) sample.problem = std::move(problem);
    sample.stored_bytes = static_cast<int64_t>(image.size() + text.size());
    if (!sample.problem.empty()) return absl::OkStatus();
    if (kind_.layout == SampleLayout::kInterleaved) {
      add_interleaved(sample.fields, listed_image, sample);
      sample.fields = nullptr;
      return absl::OkStatus();
    }
    sample.parts.push_back({SamplePart::Kind::kImage, std::move(image)});
    add_caption(caption_of(sample.fields, kind_), sample);
    return absl::OkStatus();
  }

  // Reads a value, or says in the sample's problem what it is instead.
  absl::Status read_value(ParquetColumn& column, int64_t group, int64_t row, std::string& value, Sample& sample) const {
    const auto damaged = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(sample.name, ": damaged (", what, "); download the file again"));
    };
    if (const std::string problem = column.seek(group, row); !problem.empty()) return damaged(problem);
    switch (column.next(value)) {
      case ParquetColumn::Read::kText:
        return absl::OkStatus();
      case ParquetColumn::Read::kNull:
        sample.problem = "null";
        return absl::OkStatus();
      case ParquetColumn::Read::kMalformed:
        sample.problem = std::exchange(value, {});
        return absl::OkStatus();
      case ParquetColumn::Read::kEnd:
        return damaged("it ends before this row");
      case ParquetColumn::Read::kFailed:
        return damaged(value);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const SampleKind kind_;
  std::vector<int64_t> firsts_;  // Number of the first row of each row group, then of all rows.
  sync::Mutex mutex_;
  std::vector<Columns> idle_ TITAN_GUARDED_BY(mutex_);  // Least recently used first.
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleFile>> open_parquet_samples(const std::string& path, const SampleKind& kind) {
  TITAN_ASSIGN_OR_RETURN(Columns first, open_reader(path, kind));
  return std::make_unique<ParquetSamples>(path, kind, std::move(first));
}

}  // namespace titan::data
