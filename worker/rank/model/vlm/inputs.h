#pragma once

// Names of the tensors of a vision-language model's batches and microbatches, apart from those of a text batch
// (data/loader/batch.h).

namespace titan::model::vlm {

// Of a microbatch: fp32 [1, P, patch_values], the pixels of the patches of all its images. Of a batch, whose tensors
// are by rows: fp32 [B, most patches of a row, patch_values], padded.
inline constexpr char kPatches[] = "patches";
// Of a batch: int64 [B, most images of a row, 2], the numbers of rows and columns of each image's patches; 0, 0 for
// padding.
inline constexpr char kGrids[] = "grids";

}  // namespace titan::model::vlm
