#pragma once

#include "worker/rank/data/images/image.h"

namespace titan::images {

// Returns the image in another size with the same bytes as Pillow 13's Image.resize(size, BICUBIC).
//
// The filter is Keys' cubic convolution with a = -1/2, stretched by the factor of reduction, so that every pixel of a
// reduced image is a weighted mean of all those that it covers (antialiasing). Each axis is filtered alone and rounded
// to the mode's integers. Columns are first where height - new_height > 2 * (width - new_width) in an image that
// becomes lower, else rows. Modes 1 and P take the nearest pixel. LA and RGBA are filtered with colours multiplied by
// alpha. An image that keeps its size is copied.
//
// width, height: at least 1.
Image resize_bicubic(const Image& image, int width, int height);

// Returns crop(resize_bicubic(image, width, height), box) without computing the rest.
Image resize_bicubic(const Image& image, int width, int height, const Box& box);

}  // namespace titan::images
