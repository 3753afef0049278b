#pragma once

// Rows for the training of Flux: pictures with their captions, or stored encodings of both, and the numbers that are
// drawn for each.

#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/data/samples/sample_rows.h"
#include "worker/rank/data/samples/sample_set.h"
#include "worker/rank/data/tokenizer/prompt_tokenizer.h"
#include "worker/rank/random/sample_draws.h"

namespace titan::model::flux {

// Names of a batch's tensors. A row has the picture and ids, or the stored encodings (encoded_rows.h).
inline constexpr char kImage[] = "image";             // fp32 [B, 3, S, S] in [-1, 1].
inline constexpr char kT5Ids[] = "t5_ids";            // int64 [B, Tt]
inline constexpr char kClipIds[] = "clip_ids";        // int64 [B, 77]
inline constexpr char kMoments[] = "moments";         // [B, 2 C, h, w]: mean and logarithm of the variance of latents.
inline constexpr char kT5Encoding[] = "t5_encoding";  // [B, Tt, txt_width]
inline constexpr char kClipEncoding[] = "clip_encoding";  // [B, vec_width]
inline constexpr char kNoise[] = "noise";  // fp32 [B, C, h, w], standard normal: what latents are mixed with.
inline constexpr char kEps[] = "eps";      // fp32 [B, C, h, w], standard normal: the draw from the autoencoder.
inline constexpr char kTime[] = "time";    // fp32 [B, K] in [0, 1): the times at which the row is used.
inline constexpr char kRow[] = "row";      // int64 [B]: the row's number in the stream, -1 for a missing row.

// Sizes and choices of a row.
struct ImageRowOptions {
  int image_size = 256;          // S, in pixels.
  int64_t latent_channels = 16;  // C
  int64_t downsampling = 8;      // Pixels along a side for one of h and w.
  double drop_probability = 0;   // Each encoding is dropped with it, for classifier-free guidance.
  // kDrawn: one time, drawn uniformly. kOneOfEight: row n has (2 (n mod 8) + 1) / 16. kAllEight: all these eight.
  enum class Times { kDrawn, kOneOfEight, kAllEight };
  Times times = Times::kDrawn;
};

// Makes what a sample alone decides of a row. Used by several threads.
class RowMaker {
 public:
  struct Member {
    const char* name;
    at::ScalarType type;
    std::vector<int64_t> shape;  // One row's.
  };
  virtual ~RowMaker() = default;
  virtual const std::vector<Member>& members() const = 0;
  // Returns the members' values [member.shape...], in their order. Errors: InvalidArgument if the sample cannot be
  // used, with the reason.
  virtual absl::StatusOr<std::vector<at::Tensor>> make(const data::Sample& sample,
                                                       const random::SampleDraws& draws) const = 0;
};

// Tokenizes captions for both encoders. Used by several threads.
class CaptionTokenizers {
 public:
  CaptionTokenizers(data::PromptTokenizer t5, data::PromptTokenizer clip)
      : t5_(std::move(t5)), clip_(std::move(clip)) {}
  // Writes the ids of a caption to t5 [t5_length()] and clip [clip_length()]. InvalidArgument: it is not UTF-8.
  absl::Status encode(std::string_view t5_text, std::string_view clip_text, int64_t* t5, int64_t* clip);
  // Returns the tokens of a whole caption for T5, of which encode() writes at most t5_length(). InvalidArgument: it is
  // not UTF-8.
  absl::StatusOr<int64_t> t5_tokens(std::string_view caption);
  int64_t t5_length() const { return t5_.length(); }
  int64_t clip_length() const { return clip_.length(); }

 private:
  std::mutex mutex_;
  data::PromptTokenizer t5_, clip_;
};

// Batches of one data-parallel rank. A row's sample and draws depend only on the dataset, the seed and the
// row's number, so they are the same on any mesh (torchtitan draws from a generator of each rank). The seed belongs to
// the state: a job that resumes without one in its configuration keeps that of its first attempt.
class ImageBatches : public data::BatchSource {
 public:
  ImageBatches(std::shared_ptr<data::SampleSet> samples, data::SampleOrder order, std::shared_ptr<const RowMaker> maker,
               const ImageRowOptions& row, const data::SampleRows::Options& rows, uint64_t seed);

  absl::StatusOr<data::Batch> next() override;
  nlohmann::json state() const override;
  absl::Status restore(const nlohmann::json& state) override;
  std::vector<std::string> take_warnings() override { return rows_->take_warnings(); }
  bool warns_alike() const override { return false; }
  int64_t own_unusable() const override { return rows_->own_bad_samples(); }
  absl::Status set_unusable(int64_t of_all_ranks) override { return rows_->set_bad_samples(of_all_ranks); }
  std::optional<int64_t> unusable() const override { return rows_->bad_samples(); }
  std::optional<data::ReadingCost> take_reading_cost() override;

 private:
  void open();

  const std::shared_ptr<data::SampleSet> samples_;
  const data::SampleOrder order_;
  const std::shared_ptr<const RowMaker> maker_;
  const ImageRowOptions row_;
  const data::SampleRows::Options options_;
  uint64_t seed_;
  std::unique_ptr<data::SampleRows> rows_;
};

}  // namespace titan::model::flux
