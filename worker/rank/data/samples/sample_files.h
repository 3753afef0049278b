#pragma once

// Finds the files of a dataset of samples, by its name or path. Text has another table
// (common/io/data_files/datasets.h), because a folder of images with captions also holds text files, and a dataset's
// name also decides the layout.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/datasets.h"
#include "common/io/storage/file.h"
#include "worker/rank/data/samples/sample_file.h"

namespace titan::data {

// A dataset that jobs name, as torchtitan does.
struct NamedSamples {
  const char* name;
  const char* repository;  // On the hub; "": part of torchtitan's tests, or of Titan's assets.
  const char* split;       // Only files with this word in their names are used, if there are any; "": all.
  SampleFormat format;     // Preferred if a folder has several.
  SampleLayout layout;
};

// Returns the named datasets: cc12m-wds, cc12m-test, coco-validation, shapes and shapes_validation of the image models;
// cc12m and obelics of the vision-language models.
const std::vector<NamedSamples>& named_samples();
// The name of a user's own samples, images with captions in any format. No job can name it.
inline constexpr char kUnnamedSamples[] = "";

// Returns null if there is none of that name.
const NamedSamples* find_named_samples(std::string_view name);

// Accepts kUnnamedSamples, too. Errors: InvalidArgument for a name that does not exist (with the nearest, and all
// names).
absl::StatusOr<const NamedSamples*> named_samples_or_error(const std::string& name);

// Convert to and from names of formats: "webdataset", "imagefolder", "parquet", "auto".
const char* name(SampleFormat format);
std::optional<SampleFormat> sample_format_from_name(std::string_view name);

// Files of one format, in the order in which they are read.
struct SampleFiles {
  SampleKind kind;  // Its format and layout.
  std::vector<std::string> files;
  std::string warning = {};  // About held-out files in the folder; empty: none.
};

// Chooses the files of samples from a list, in name order: tar archives, else Parquet files, else the metadata.jsonl,
// else the folder `path` itself if there are images in it. A path that names its files, by a glob or one by one,
// decides what they are. Errors: NotFound (names the path); InvalidArgument for compressed archives.
absl::StatusOr<SampleFiles> choose_sample_files(const std::string& path, const data_files::ListedFiles& listed,
                                                SampleFormat format = SampleFormat::kAuto);

// Finds the files at a path: a folder, a glob or a file. "s3://BUCKET/FOLDER/" and one "s3://" file are found with
// `files` (s3::all_files), which also reads them. Errors: those of choose_sample_files() and list_files(), also for a
// hub path (samples_on_hub() accepts those).
absl::StatusOr<SampleFiles> find_sample_files(const std::string& path, SampleFormat format = SampleFormat::kAuto,
                                              storage::Files* files = nullptr);

// Finds the files of a named dataset, with those of its split only. Errors: InvalidArgument for an unknown name (with
// the nearest) or without a path; those of find_sample_files().
absl::StatusOr<SampleFiles> sample_dataset_files(const std::string& dataset, const std::string& path,
                                                 SampleFormat format = SampleFormat::kAuto,
                                                 storage::Files* files = nullptr);

// Finds the shards of a dataset of stored encodings in a folder, "s3://BUCKET/FOLDER" included. Errors: those of
// read_encodings_manifest().
absl::StatusOr<SampleFiles> find_encodings(const std::string& path, storage::Files& files);

// Leaves the files of a named dataset's split, if there are any, and sets its layout. Adds a warning about held-out
// files of a dataset without a split.
void keep_split(const NamedSamples& dataset, const std::string& path, SampleFiles& found);

}  // namespace titan::data
