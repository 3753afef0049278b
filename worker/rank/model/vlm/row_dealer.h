#pragma once

// Deals rows of texts with images to the data-parallel ranks. Which samples a row has, and its number in the stream,
// depend only on the dataset and the options, so they are the same on any mesh.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/vision_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/images/patches.h"
#include "worker/rank/data/multimodal/batch.h"
#include "worker/rank/data/multimodal/samples.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/data/samples/sample_rows.h"
#include "worker/rank/data/samples/sample_set.h"

namespace titan::model::vlm {

// Row r of global microbatch m (batch * dp_size rows) is row m * batch * dp_size + r of the stream, and this rank takes
// rows [dp_rank * batch, (dp_rank + 1) * batch). With RowDealerOptions::balance the rows are dealt by the work on their
// images (data::balance_rows): those of a step where ranks read their own samples, those of a global microbatch where
// all ranks read all. Then `max_images` limits the rows as they come, and not those that a rank gets.
class RowDealer {
 public:
  virtual ~RowDealer() = default;

  // Returns the next `batch` rows. Rows after the end of the data are padding. OutOfRange: no rank has a row. Other
  // errors: those of data::SampleRows.
  virtual absl::StatusOr<data::MultimodalBatch> next() = 0;
  // Returns the place after the last result of next(), and resumes at one. Errors: InvalidArgument.
  virtual nlohmann::json state() const = 0;
  virtual absl::Status restore(const nlohmann::json& state) = 0;
  virtual std::vector<std::string> take_warnings() = 0;
  // Returns whether this rank reads the samples of all ranks, so that each finds the same unusable ones.
  virtual bool reads_all_samples() const = 0;
  // Returns the reader of the samples, for its counts.
  virtual data::SampleRows& samples() = 0;
};

// How rows are dealt so that the work on their images is about equal on all data-parallel ranks.
struct ImageBalance {
  // Returns an image's grid of patches. InvalidArgument: the image is unsuitable.
  std::function<absl::StatusOr<models::PatchGrid>(images::ImageSize)> grid_of;
  // Returns the work on an image. Null: rows are not balanced.
  std::function<int64_t(const models::PatchGrid&)> cost_of;
  int64_t microbatches = 1;  // Global microbatches of a step.
};

struct RowDealerOptions {
  // `batch`, `dp_rank` and `dp_size` are this rank's.
  data::SampleRows::Options rows;
  data::MultimodalOptions limits;   // `rows`: number of rows among which there are at most `max_images` images.
  bool one_image_a_sample = false;  // Every sample of the dataset has one image (SampleLayout::kCaption).
  ImageBalance balance = {};
};

// Opens the stream. `decode` returns a data::MultimodalSample.
//
// If every sample gets a separate row and a rank's rows can never have too many images, each rank reads and decodes
// only its own samples, and with `balance` the headers of all images of a step. Otherwise the samples before a row
// decide what the row is, so all ranks read and decode all.
// Errors: data::check_options().
absl::StatusOr<std::unique_ptr<RowDealer>> open_rows(std::shared_ptr<data::SampleSet> samples,
                                                     const data::SampleOrder& order, data::DecodeSample decode,
                                                     const RowDealerOptions& options);

}  // namespace titan::model::vlm
