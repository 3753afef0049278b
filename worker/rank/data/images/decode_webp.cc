#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/formats.h"

namespace titan::images {
namespace {

const char* reason(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OK:
      return "no error";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_INVALID_PARAM:
      return "invalid parameter";
    case VP8_STATUS_BITSTREAM_ERROR:
      return "an error in the bit stream";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "an unsupported feature";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the image data ends too early";
    case VP8_STATUS_USER_ABORT:
      break;
  }
  return "unknown error";
}

absl::Status webp_error(VP8StatusCode code, std::string_view bytes) {
  return absl::DataLossError(absl::StrCat("a corrupt WebP image of ", bytes.size(), " bytes: ", reason(code)));
}

// Returns DataLoss unless the data has the length in its header.
absl::Status check_length(std::string_view bytes) {
  uint64_t length = 8;
  for (size_t i = 0; i < 4; ++i) length += uint64_t{static_cast<uint8_t>(bytes[4 + i])} << (8 * i);
  if (length <= bytes.size()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("a truncated WebP image: the data ends at byte ", bytes.size(), " of ", length));
}

absl::StatusOr<Image> decode_still(std::string_view bytes, const uint8_t* data, Image image) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return absl::InternalError("another version of libwebp is loaded");
  config.output.colorspace = image.mode == Mode::kRGBA ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data();
  config.output.u.RGBA.size = image.pixels.size();
  config.output.u.RGBA.stride = static_cast<int>(image.pixels.size() / static_cast<size_t>(image.height));
  const VP8StatusCode code = WebPDecode(data, bytes.size(), &config);
  if (code != VP8_STATUS_OK) return webp_error(code, bytes);
  return image;
}

// A frame may cover a part of the canvas only; the rest is black, or transparent.
absl::StatusOr<Image> decode_first_frame(std::string_view bytes, const uint8_t* data, Image image) {
  const WebPData file{data, bytes.size()};
  WebPAnimDecoderOptions options;
  if (!WebPAnimDecoderOptionsInit(&options)) return absl::InternalError("another version of libwebp is loaded");
  options.color_mode = MODE_RGBA;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(WebPAnimDecoderNew(&file, &options),
                                                                             WebPAnimDecoderDelete);
  uint8_t* canvas = nullptr;
  int timestamp = 0;
  if (decoder == nullptr || !WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp)) {
    return webp_error(VP8_STATUS_BITSTREAM_ERROR, bytes);
  }
  const size_t used = pixel_bytes(image.mode);
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = canvas[i / used * 4 + i % used];
  return image;
}

}  // namespace

absl::StatusOr<Image> decode_webp(std::string_view bytes, int64_t max_pixels) {
  TITAN_RETURN_IF_ERROR(check_length(bytes));
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  const VP8StatusCode code = WebPGetFeatures(data, bytes.size(), &features);
  if (code != VP8_STATUS_OK) return webp_error(code, bytes);
  TITAN_RETURN_IF_ERROR(check_size("WebP", features.width, features.height, max_pixels));
  Image image = blank_image(features.has_alpha ? Mode::kRGBA : Mode::kRGB, features.width, features.height);
  return (features.has_animation ? decode_first_frame : decode_still)(bytes, data, std::move(image));
}

}  // namespace titan::images
