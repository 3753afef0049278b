#pragma once

// Latents as the tokens that the transformer reads.

#include <ATen/ATen.h>

#include <cstdint>

namespace titan::model::flux {

// Cuts latents [B, C, h, w] into tokens of 2 x 2 places, [B, h/2 w/2, 4 C], in rows; each has its channels one after
// the other, with the places of one channel in rows.
at::Tensor pack(const at::Tensor& latents);
// The inverse, for latents of `height` x `width` places.
at::Tensor unpack(const at::Tensor& tokens, int64_t height, int64_t width);
// Returns the positions [1, height/2 * width/2, 3] of such tokens: 0, row, column. fp32.
at::Tensor image_positions(int64_t height, int64_t width, at::Device device);

}  // namespace titan::model::flux
