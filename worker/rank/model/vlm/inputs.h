#pragma once

// Names of the tensors of a vision-language model's batches and microbatches, apart from those of a text batch
// (data/loader/batch.h).

namespace titan::model::vlm {

// The pixels of patches. In a microbatch they are those of this rank's images, fp32 [1, P, patch_values]. In a batch,
// whose tensors are by rows, each row's are padded: fp32 [B, most patches of a row, patch_values].
inline constexpr char kPatches[] = "patches";
// The numbers of rows and columns of each image's patches, in a batch only: int64 [B, most images of a row, 2], padded
// with 0, 0.
inline constexpr char kGrids[] = "grids";

}  // namespace titan::model::vlm
