#include "worker/rank/data/images/encode_png.h"

#include <png.h>

#include <cstdio>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "worker/rank/data/images/formats.h"

namespace titan::images {
namespace {

// Tags of EXIF's first directory.
enum ExifTag : uint16_t { kImageDescription = 0x010e, kMake = 0x010f, kModel = 0x0110, kSoftware = 0x0131 };

void append_little_endian(std::string& out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// Returns a TIFF file of one directory, which is what an eXIf chunk holds; "" without fields.
std::string exif_of(const PngFields& fields) {
  struct Entry {
    ExifTag tag;
    const std::string& text;
  };
  std::vector<Entry> entries;
  for (const Entry& entry : {Entry{kImageDescription, fields.image_description}, Entry{kMake, fields.make},
                             Entry{kModel, fields.model}, Entry{kSoftware, fields.software}}) {
    if (!entry.text.empty()) entries.push_back(entry);
  }
  if (entries.empty()) return "";
  constexpr uint32_t kHeader = 8, kEntry = 12, kAscii = 2, kInline = 4;
  const auto count = static_cast<uint32_t>(entries.size());
  std::string exif("II*\0\x08\0\0\0", kHeader), texts;
  const uint32_t texts_at = kHeader + 2 + count * kEntry + 4;
  append_little_endian(exif, count, 2);
  for (const auto& [tag, text] : entries) {
    const auto size = static_cast<uint32_t>(text.size() + 1);
    append_little_endian(exif, tag, 2);
    append_little_endian(exif, kAscii, 2);
    append_little_endian(exif, size, 4);
    if (size <= kInline) {
      exif.append(text).append(kInline - text.size(), '\0');
      continue;
    }
    append_little_endian(exif, texts_at + static_cast<uint32_t>(texts.size()), 4);
    texts.append(text).append(1 + size % 2, '\0');  // Values begin at even bytes.
  }
  append_little_endian(exif, 0, 4);  // There is no second directory.
  return exif + texts;
}

class PngEncoder {
 public:
  PngEncoder() : png_(png_create_write_struct(PNG_LIBPNG_VER_STRING, &jump_, on_error, on_warning)) {}
  ~PngEncoder() { png_destroy_write_struct(&png_, &info_); }
  PngEncoder(const PngEncoder&) = delete;
  PngEncoder& operator=(const PngEncoder&) = delete;

  absl::StatusOr<std::string> encode(std::span<const uint8_t> rgb, int width, int height, const PngFields& fields) {
    if (png_ == nullptr) return absl::InternalError("libpng cannot be started");
    std::string exif = exif_of(fields);
    std::vector<png_text> texts;
    for (const auto& [keyword, text] : fields.texts) {
      png_text& one = texts.emplace_back();
      one.compression = PNG_ITXT_COMPRESSION_NONE;
      one.key = const_cast<char*>(keyword.c_str());
      one.text = const_cast<char*>(text.c_str());
    }
    const bool fine = returns_without_error(jump_, [&] {
      write_header(width, height, exif, texts);
      for (int y = 0; y < height; ++y) png_write_row(png_, rgb.data() + 3 * size_t(y) * size_t(width));
      png_write_end(png_, info_);
    });
    if (fine) return std::move(out_);
    return absl::InvalidArgumentError(absl::StrCat("cannot write a PNG image: ", jump_.message));
  }

 private:
  static void on_error(png_structp png, png_const_charp message) {
    auto& jump = *static_cast<ErrorJump*>(png_get_error_ptr(png));
    std::snprintf(jump.message, sizeof jump.message, "%s", message);
    std::longjmp(jump.target, 1);  // NOLINT(cert-err52-cpp)
  }
  static void on_warning(png_structp png, png_const_charp message) { on_error(png, message); }
  static void on_write(png_structp png, png_bytep bytes, size_t count) {
    static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<const char*>(bytes), count);
  }

  void write_header(int width, int height, std::string& exif, const std::vector<png_text>& texts) {
    info_ = png_create_info_struct(png_);
    png_set_write_fn(png_, &out_, on_write, nullptr);
    png_set_compression_level(png_, 6);
    png_set_compression_strategy(png_, 1);  // Z_FILTERED
    png_set_filter(png_, PNG_FILTER_TYPE_BASE, PNG_ALL_FILTERS);
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (!exif.empty()) {
      png_set_eXIf_1(png_, info_, static_cast<png_uint_32>(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
    }
    png_set_text(png_, info_, texts.data(), static_cast<int>(texts.size()));
    png_write_info(png_, info_);
  }

  ErrorJump jump_;
  std::string out_;
  png_structp png_;
  png_infop info_ = nullptr;
};

}  // namespace

absl::StatusOr<std::string> encode_png(std::span<const uint8_t> rgb, int width, int height, const PngFields& fields) {
  if (width < 1 || height < 1 || rgb.size() != 3 * static_cast<size_t>(width) * static_cast<size_t>(height)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write a PNG image of ", width, " x ", height,
                                                   " pixels from ", rgb.size(), " bytes; each pixel has 3"));
  }
  return PngEncoder().encode(rgb, width, height, fields);
}

}  // namespace titan::images
