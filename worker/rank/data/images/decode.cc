#include "worker/rank/data/images/decode.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/formats.h"

namespace titan::images {
namespace {

using namespace std::string_view_literals;

struct Signature {
  size_t offset;
  std::string_view bytes;
  const char* format;  // With its article.
};

// Formats that are not supported, for messages.
constexpr Signature kOtherFormats[] = {
    {0, "GIF8"sv, "a GIF image"},
    {0, "BM"sv, "a BMP image"},
    {0, "II*\0"sv, "a TIFF image"},
    {0, "MM\0*"sv, "a TIFF image"},
    {4, "ftypavif"sv, "an AVIF image"},
    {4, "ftypavis"sv, "an AVIF image"},
    {4, "ftyphe"sv, "a HEIF image"},
    {4, "ftypmif1"sv, "a HEIF image"},
    {0, "\0\0\0\x0cjP  "sv, "a JPEG 2000 image"},
    {0, "\xff\x4f\xff\x51"sv, "a JPEG 2000 image"},
    {0, "\0\0\0\x0cJXL "sv, "a JPEG XL image"},
    {0, "\xff\x0a"sv, "a JPEG XL image"},
    {0, "\0\0\1\0"sv, "an icon"},
    {0, "8BPS"sv, "a Photoshop image"},
    {0, "%PDF"sv, "a PDF document"},
};

// How texts begin that servers return in place of an image, in lower case.
constexpr Signature kTexts[] = {
    {0, "<!doctype html"sv, "an HTML page"}, {0, "<html"sv, "an HTML page"},  {0, "<svg"sv, "an SVG image"},
    {0, "<?xml"sv, "an XML document"},       {0, "{\""sv, "a JSON document"},
};

const char* find(std::string_view bytes, std::span<const Signature> signatures) {
  for (const Signature& one : signatures) {
    if (bytes.substr(std::min(one.offset, bytes.size())).starts_with(one.bytes)) return one.format;
  }
  return nullptr;
}

std::string other_format(std::string_view bytes) {
  if (bytes.empty()) return "an empty file";
  if (const char* const format = find(bytes, kOtherFormats)) return format;
  std::string text(bytes.substr(0, 256));
  absl::StripLeadingAsciiWhitespace(&text);
  absl::AsciiStrToLower(&text);
  if (const char* const format = find(text, kTexts)) return format;
  const std::string start = absl::CHexEscape(std::string(bytes.substr(0, 8)));
  return absl::StrCat("data of an unknown format (it begins with \"", start, "\")");
}

bool is_webp(std::string_view bytes) { return bytes.starts_with("RIFF") && bytes.substr(0, 15).ends_with("WEBPVP8"); }

}  // namespace

absl::Status check_size(const char* format, int64_t width, int64_t height, int64_t max_pixels) {
  if (width * height <= max_pixels) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a ", format, " image of ", width, " x ", height, " pixels; at most ",
                                                 max_pixels, " pixels are decoded"));
}

absl::StatusOr<Image> decode_image(std::string_view bytes, int64_t max_pixels) {
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, max_pixels);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, max_pixels);
  if (is_webp(bytes)) return decode_webp(bytes, max_pixels);
  return absl::InvalidArgumentError(absl::StrCat(other_format(bytes), "; supported: JPEG, PNG, WebP"));
}

}  // namespace titan::images
