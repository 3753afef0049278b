#pragma once

// Pictures of prompts from a checkpoint of Flux.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/model/flux/pictures.h"
#include "worker/rank/tools/generate/rank_model.h"
#include "worker/rank/tools/generate/source.h"

namespace titan::tools {

// Choices of the command line. Those that are empty follow from the checkpoint's job or its pipeline.
struct PictureChoice {
  std::string image;                  // A file, or a folder for files with the prompts' numbers.
  std::string t5, clip, autoencoder;  // Folders, as in [encoder].
  std::optional<int> steps;
  std::optional<double> guidance;  // 0 or 1: none.
  std::optional<int64_t> width, height;
  std::optional<int64_t> rows;  // Pictures at a time.
  uint64_t seed = 0;
};

// How to make pictures of a checkpoint.
struct PicturePlan {
  config::JobConfig job;  // Names the encoders.
  model::flux::PictureOptions options;
  std::string image;         // The choice's file or folder, or the folder of the job's [inference].
  std::string prompts_path;  // The job's file of prompts, for a command line without prompts. Empty: unknown.
};

// Completes the choice by the checkpoint's job or pipeline. Encoders may be names of repositories, as in [encoder].
// Errors: InvalidArgument (an encoder is unknown, or a number is not one), FailedPrecondition (the step's configuration
// cannot be read).
absl::StatusOr<PicturePlan> plan_pictures(storage::Files& files, const ModelSource& source,
                                          const PictureChoice& choice);

// Returns the file of each picture: the plan's image, or for several prompts that name with a number before its
// extension. Errors: InvalidArgument for the name of a new file that does not end in ".png".
absl::StatusOr<std::vector<std::string>> picture_files(const std::string& image, size_t prompts);

// Checks that prompts are UTF-8. InvalidArgument names the prompt's number, from 1.
absl::Status check_prompts(const std::vector<std::string>& prompts);

// Makes the pictures and writes each file as soon as it is done. `made` is called with the prompt's number, on one
// thread, and `warn` before that if encoders will not read all of a prompt. Errors: those of the weights and files, of
// which an unwritable folder is reported before the work; InvalidArgument if a size cannot be cut into tokens;
// ResourceExhausted if the CPU's memory cannot hold a picture; OutOfRange if a picture is not finite.
absl::Status make_pictures(storage::Files& files, const ModelSource& source, const PicturePlan& plan,
                           const RankOptions& ranks, const std::vector<std::string>& prompts,
                           const std::function<void(const std::string& warning)>& warn,
                           const std::function<void(size_t prompt, const std::string& file)>& made);

}  // namespace titan::tools
