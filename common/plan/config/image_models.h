#pragma once

// Checks what a job needs so that its model can learn from images, and lists datasets of images that a job can name.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::config {

// Formats of files, training.dataloader.format, that hold images with captions, or their encodings.
bool is_image_format(std::string_view format);

// Names of datasets of images. cc12m-test is a folder of a torchtitan checkout, so it needs a path. So does obelics,
// whose images have to be downloaded before the training; its samples are lists of texts and images. shapes and
// shapes_validation are part of an installation.
inline constexpr std::string_view kImageDatasets[] = {"cc12m-wds", "cc12m",  "cc12m-test",       "coco-validation",
                                                      "obelics",   "shapes", "shapes_validation"};
bool is_image_dataset(std::string_view dataset);

// Returns where a hub has the dataset, as a dataset_path; empty: nowhere.
std::string hub_path_of_images(std::string_view dataset);

// Returns whether the value of encoder.t5_encoder or clip_encoder has the form of a repository's name, "ORG/NAME". A
// folder may look the same: one that exists comes first, as in Hugging Face's libraries.
bool is_repository_name(const std::string& encoder);
// The same for encoder.autoencoder_path, which is a file, a folder or a name.
bool names_autoencoder_repository(const std::string& path);

// Returns whether some data of the job is stored encodings (titan-data encode-images).
bool reads_encodings(const JobConfig& config);
// Returns whether the job needs flux's encoders: for images, or to generate images in validations. A job whose data is
// all stored encodings does not.
bool uses_encoders(const JobConfig& config);

// Returns the type in which flux's encoders compute: "float64", "float32" or "bfloat16".
std::string encoder_dtype(const JobConfig& config);

// Returns warnings about settings of image models that work, but are seldom intended.
std::vector<std::string> image_warnings(const JobConfig& config);

}  // namespace titan::config
