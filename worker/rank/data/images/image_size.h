#pragma once

#include <optional>
#include <string_view>

#include "worker/rank/data/images/patches.h"

namespace titan::images {

// Returns the size of a JPEG, PNG or WebP image from its header, without decoding it. `bytes` may be only the
// beginning of the image. Nothing if the header is not in it, is damaged, or is one of another format.
std::optional<ImageSize> image_size(std::string_view bytes);

}  // namespace titan::images
