// A folder with images and a metadata.jsonl, as Hugging Face's imagefolder: a line of JSON for each sample,
// {"file_name": "a/1.jpg", "text": ".."}, with the caption under "caption" or "text". Interleaved samples have lists
// "images" and "texts" instead, in which an image is a file name. Other keys are Sample::fields. Blank lines are not
// samples.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json/value.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/json_row.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/samples/folder_samples.h"
#include "worker/rank/data/samples/interleaved.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {
namespace {

constexpr int64_t kPart = 1 << 20;

// Passes a file's bytes to a reader of lines, which finds the places of the lines.
class FileBytes final : public data_files::ByteSource {
 public:
  explicit FileBytes(storage::ReadableFile& file) : file_(file) {}

  absl::StatusOr<size_t> read(char* buffer, size_t size) override {
    const auto part = std::min<int64_t>(static_cast<int64_t>(size), file_.size() - at_);
    TITAN_RETURN_IF_ERROR(file_.read(at_, part, buffer));
    at_ += part;
    return static_cast<size_t>(part);
  }

 private:
  storage::ReadableFile& file_;
  int64_t at_ = 0;
};

absl::StatusOr<SampleIndex> scan_lines(const std::string& path, storage::ReadableFile& file) {
  data_files::LineReader lines = data_files::LineReader::over(path, {}, std::make_unique<FileBytes>(file));
  SampleIndex index;
  std::string_view line;
  while (true) {
    const int64_t begin = lines.place().offset;
    TITAN_ASSIGN_OR_RETURN(const bool found, lines.next(line));
    if (!found) return index;
    if (!data_files::blank(line)) index.samples.push_back({begin, static_cast<int64_t>(line.size())});
  }
}

class MetadataSamples final : public SampleFile {
 public:
  MetadataSamples(std::string path, SampleKind kind, std::shared_ptr<storage::ReadableFile> file,
                  std::shared_ptr<const SampleIndex> index)
      : path_(std::move(path)),
        kind_(std::move(kind)),
        file_(std::move(file)),
        index_(std::move(index)),
        images_(path_.substr(0, path_.rfind('/') == std::string::npos ? 0 : path_.rfind('/')), kind_) {}

  int64_t samples() const override { return static_cast<int64_t>(index_->samples.size()); }

  absl::StatusOr<Sample> read(int64_t number) override {
    const SampleExtent extent = index_->samples[static_cast<size_t>(number)];
    Sample sample{.name = absl::StrCat(path_, ": sample ", number), .stored_bytes = extent.size};
    std::string line(static_cast<size_t>(extent.size), '\0');
    TITAN_RETURN_IF_ERROR(file_->read(extent.offset, extent.size, line.data()));
    std::optional<nlohmann::ordered_json> fields;
    if (text::is_utf8(line)) fields = json::parse(data_files::without_mark(line));
    if (!fields.has_value() || !fields->is_object()) {
      sample.problem = "its line is not a JSON object";
      return sample;
    }
    sample.fields = *std::move(fields);
    TITAN_RETURN_IF_ERROR(kind_.layout == SampleLayout::kCaption ? fill_caption(sample) : fill_lists(sample));
    if (!sample.problem.empty()) sample.parts.clear();
    return sample;
  }

 private:
  absl::Status fill_caption(Sample& sample) const {
    const auto file_name = sample.fields.find("file_name");
    if (file_name == sample.fields.end() || !file_name->is_string()) {
      sample.problem = "no string \"file_name\"";
      return absl::OkStatus();
    }
    sample.key = file_name->get<std::string>();
    sample.name = absl::StrCat(path_, ": ", text::printable(sample.key));
    TITAN_ASSIGN_OR_RETURN(std::optional<std::string> bytes, images_.read(sample.key, sample, sample.problem));
    if (!bytes.has_value()) return absl::OkStatus();
    sample.parts.push_back({SamplePart::Kind::kImage, *std::move(bytes)});
    add_caption(caption_of(sample.fields, kind_), sample);
    return absl::OkStatus();
  }

  absl::Status fill_lists(Sample& sample) const {
    absl::Status status;
    add_interleaved(
        sample.fields,
        [&](const nlohmann::ordered_json& value, std::string& problem) -> std::optional<std::string> {
          if (!value.is_string()) {
            problem = "an image that is not a file name";
            return std::nullopt;
          }
          absl::StatusOr<std::optional<std::string>> bytes = images_.read(value.get<std::string>(), sample, problem);
          if (bytes.ok()) return *std::move(bytes);
          status = bytes.status();
          problem = "an image that cannot be read";
          return std::nullopt;
        },
        sample);
    return status;
  }

  const std::string path_;
  const SampleKind kind_;
  const std::shared_ptr<storage::ReadableFile> file_;
  const std::shared_ptr<const SampleIndex> index_;
  const FolderFiles images_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleFile>> open_metadata(const std::string& path, const SampleKind& kind,
                                                          IndexStore& store) {
  TITAN_ASSIGN_OR_RETURN(const std::string facts, facts_of(path, kind));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, open_bytes(path, kind));
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<const SampleIndex> index,
                         store.get(facts, [&] { return scan_lines(path, *file); }));
  return std::make_unique<MetadataSamples>(path, kind, std::move(file), std::move(index));
}

}  // namespace titan::data
