#pragma once

// Deals rows of texts with images to the data-parallel ranks. Which samples a row has, and its number in the stream,
// depend only on the dataset and the options, so they are the same on any mesh.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/multimodal/batch.h"
#include "worker/rank/data/multimodal/samples.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/data/samples/sample_rows.h"
#include "worker/rank/data/samples/sample_set.h"

namespace titan::model::vlm {

// Row r of global microbatch m (batch * dp_size rows) is row m * batch * dp_size + r of the stream, and this rank takes
// rows [dp_rank * batch, (dp_rank + 1) * batch).
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
};

struct RowDealerOptions {
  // `batch`, `dp_rank` and `dp_size` are this rank's.
  data::SampleRows::Options rows;
  data::MultimodalOptions limits;   // `rows`: number of rows among which there are at most `max_images` images.
  bool one_image_a_sample = false;  // Every sample of the dataset has one image (SampleLayout::kCaption).
};

// Opens the stream. `decode` returns a data::MultimodalSample.
//
// If every sample gets a separate row and a rank's rows can never have too many images, each rank reads and decodes
// only its own samples. Otherwise the samples before a row decide what the row is, so all ranks read and decode all.
// Errors: data::check_options().
absl::StatusOr<std::unique_ptr<RowDealer>> open_rows(std::shared_ptr<data::SampleSet> samples,
                                                     const data::SampleOrder& order, data::DecodeSample decode,
                                                     const RowDealerOptions& options);

}  // namespace titan::model::vlm
