#include <png.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/formats.h"

namespace titan::images {
namespace {

class PngDecoder {
 public:
  explicit PngDecoder(std::string_view bytes)
      : bytes_(bytes), png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, &jump_, on_error, on_warning)) {}
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  absl::StatusOr<Image> decode(int64_t max_pixels) {
    if (png_ == nullptr) return absl::InternalError("libpng cannot be started");
    if (!returns_without_error(jump_, [this] { read_header(); })) return failed();
    width_ = png_get_image_width(png_, info_);
    height_ = png_get_image_height(png_, info_);
    TITAN_RETURN_IF_ERROR(check_size("PNG", width_, height_, max_pixels));
    Image image = blank_image(mode(), static_cast<int>(width_), static_cast<int>(height_));
    if (!returns_without_error(jump_, [&] { choose_output(image); })) return failed();
    // Gray with alpha has no mode for 16 bits, and becomes colours.
    const bool widened = image.mode == Mode::kRGBA && png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY_ALPHA;
    std::vector<png_bytep> rows(height_);
    const size_t row_bytes = image.pixels.size() / height_;
    for (size_t y = 0; y < rows.size(); ++y) rows[y] = image.pixels.data() + y * row_bytes;
    if (!returns_without_error(jump_, [&] { read_rows(rows.data(), row_bytes); })) return failed();
    if (widened) spread_gray(image.pixels);
    return image;
  }

 private:
  static void on_error(png_structp png, png_const_charp message) {
    auto& jump = *static_cast<ErrorJump*>(png_get_error_ptr(png));
    std::snprintf(jump.message, sizeof jump.message, "%s", message);
    std::longjmp(jump.target, 1);  // NOLINT(cert-err52-cpp)
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep out, size_t count) {
    auto& self = *static_cast<PngDecoder*>(png_get_io_ptr(png));
    self.truncated_ = count > self.bytes_.size() - self.at_;
    if (self.truncated_) png_error(png, "");
    std::memcpy(out, self.bytes_.data() + self.at_, count);
    self.at_ += count;
  }

  void read_header() {
    info_ = png_create_info_struct(png_);
    png_set_read_fn(png_, this, on_read);
    // Texts, profiles and the like are skipped rather than decompressed.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
  }

  Mode mode() const {
    const int depth = png_get_bit_depth(png_, info_);
    switch (png_get_color_type(png_, info_)) {
      case PNG_COLOR_TYPE_GRAY:
        return depth == 1 ? Mode::k1 : depth == 16 ? Mode::kI16 : Mode::kL;
      case PNG_COLOR_TYPE_GRAY_ALPHA:
        return depth == 16 ? Mode::kRGBA : Mode::kLA;
      case PNG_COLOR_TYPE_PALETTE:
        return Mode::kP;
      case PNG_COLOR_TYPE_RGB_ALPHA:
        return Mode::kRGBA;
      default:
        return Mode::kRGB;
    }
  }

  void choose_output(Image& image) {
    if (image.mode == Mode::kP) {
      png_set_packing(png_);
      png_colorp colors = nullptr;
      int count = 0;
      png_get_PLTE(png_, info_, &colors, &count);
      image.palette.resize(3 * 256);
      for (int i = 0; i < count; ++i) {
        const uint8_t color[] = {colors[i].red, colors[i].green, colors[i].blue};
        std::copy_n(color, 3, image.palette.begin() + 3 * i);
      }
    } else if (image.mode == Mode::kI16) {
      png_set_swap(png_);
    } else {
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_strip_16(png_);
    }
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  }

  void read_rows(png_bytepp rows, size_t row_bytes) {
    // Two bytes a pixel are read into a row that has four for each.
    if (png_get_rowbytes(png_, info_) > row_bytes) png_error(png_, "rows are longer than expected");
    for (int pass = 0; pass < passes_; ++pass) {
      for (row_ = 0; row_ < height_; ++row_) png_read_row(png_, rows[row_], nullptr);
    }
    png_read_end(png_, nullptr);
  }

  // Turns rows that begin with pairs of gray and alpha into red, green, blue and alpha.
  void spread_gray(std::vector<uint8_t>& pixels) const {
    for (size_t y = 0; y < height_; ++y) {
      uint8_t* const row = pixels.data() + y * width_ * 4;
      for (size_t x = width_; x-- > 0;) {
        const uint8_t gray = row[2 * x], alpha = row[2 * x + 1];
        row[4 * x] = row[4 * x + 1] = row[4 * x + 2] = gray;
        row[4 * x + 3] = alpha;
      }
    }
  }

  absl::Status failed() const {
    const std::string row = height_ > 0 ? absl::StrCat(", row ", row_, " of ", height_) : "";
    if (truncated_) {
      return absl::DataLossError(absl::StrCat("a truncated PNG image: the data ends at byte ", bytes_.size(), row));
    }
    return absl::DataLossError(
        absl::StrCat("a corrupt PNG image, near byte ", at_, " of ", bytes_.size(), row, ": ", jump_.message));
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  bool truncated_ = false;
  size_t width_ = 0, height_ = 0, row_ = 0;
  int passes_ = 1;
  ErrorJump jump_;
  png_structp png_;
  png_infop info_ = nullptr;
};

}  // namespace

absl::StatusOr<Image> decode_png(std::string_view bytes, int64_t max_pixels) {
  return PngDecoder(bytes).decode(max_pixels);
}

}  // namespace titan::images
