#include <algorithm>
#include <cstdio>  // jpeglib.h uses FILE without including this.
//
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/formats.h"

namespace titan::images {
namespace {

// Each scan of a progressive image visits all its pixels, so that a small file of many scans would take hours.
constexpr int kMaxScans = 500;
constexpr int kRowsAtOnce = 16;

// libjpeg's decoder. Its source suspends at the end of the data as Pillow's does, so that both accept the same files.
class JpegDecoder {
 public:
  explicit JpegDecoder(std::string_view bytes) : size_(bytes.size()) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr info) {
      auto& jump = *static_cast<ErrorJump*>(info->client_data);
      info->err->format_message(info, jump.message);
      std::longjmp(jump.target, 1);  // NOLINT(cert-err52-cpp)
    };
    errors_.emit_message = [](j_common_ptr, int) {};
    info_.client_data = &jump_;
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
    source_.bytes_in_buffer = bytes.size();
    source_.init_source = source_.term_source = [](j_decompress_ptr) {};
    source_.fill_input_buffer = [](j_decompress_ptr) -> boolean { return FALSE; };
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.skip_input_data = [](j_decompress_ptr info, long count) {
      const size_t skipped = std::min(static_cast<size_t>(std::max(count, 0L)), info->src->bytes_in_buffer);
      info->src->next_input_byte += skipped;
      info->src->bytes_in_buffer -= skipped;
    };
    progress_.progress_monitor = [](j_common_ptr info) {
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
      auto& jump = *static_cast<ErrorJump*>(info->client_data);
      std::snprintf(jump.message, sizeof jump.message, "more than %d scans", kMaxScans);
      std::longjmp(jump.target, 1);  // NOLINT(cert-err52-cpp)
    };
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  absl::StatusOr<Image> decode(int64_t max_pixels) {
    TITAN_RETURN_IF_ERROR(read_header());
    TITAN_RETURN_IF_ERROR(check_size("JPEG", info_.image_width, info_.image_height, max_pixels));
    TITAN_ASSIGN_OR_RETURN(const Mode mode, choose_mode());
    Image image = blank_image(mode, static_cast<int>(info_.image_width), static_cast<int>(info_.image_height));
    TITAN_RETURN_IF_ERROR(read_rows(image.pixels.data(), image.pixels.size() / info_.image_height));
    if (mode == Mode::kCMYK) {  // Adobe stores the light that an ink leaves, and Pillow assumes this of every file.
      for (uint8_t& ink : image.pixels) ink = static_cast<uint8_t>(255 - ink);
    }
    return image;
  }

 private:
  absl::Status read_header() {
    int read = JPEG_SUSPENDED;
    const bool fine = returns_without_error(jump_, [&] {
      jpeg_create_decompress(&info_);
      info_.src = &source_;
      info_.progress = &progress_;
      read = jpeg_read_header(&info_, TRUE);
    });
    if (!fine) return corrupt();
    return read == JPEG_HEADER_OK ? absl::OkStatus() : truncated();
  }

  absl::StatusOr<Mode> choose_mode() {
    if (info_.num_components == 1) return info_.out_color_space = JCS_GRAYSCALE, Mode::kL;
    if (info_.num_components == 3) return info_.out_color_space = JCS_RGB, Mode::kRGB;
    if (info_.num_components == 4) return info_.out_color_space = JCS_CMYK, Mode::kCMYK;
    return absl::InvalidArgumentError(
        absl::StrCat("a JPEG image of ", info_.num_components, " components; supported: 1, 3 and 4"));
  }

  absl::Status read_rows(uint8_t* pixels, size_t row_bytes) {
    bool complete = false;
    const bool fine = returns_without_error(jump_, [&] {
      if (!jpeg_start_decompress(&info_)) return;
      while (info_.output_scanline < info_.output_height) {
        JSAMPROW rows[kRowsAtOnce];
        for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = pixels + (info_.output_scanline + size_t(i)) * row_bytes;
        const JDIMENSION left = info_.output_height - info_.output_scanline;
        if (jpeg_read_scanlines(&info_, rows, std::min<JDIMENSION>(left, kRowsAtOnce)) == 0) return;
      }
      complete = true;
      (void)jpeg_finish_decompress(&info_);  // Suspends where the end marker is missing.
    });
    if (!fine) return corrupt();
    return complete ? absl::OkStatus() : truncated();
  }

  std::string position() const {
    std::string byte = absl::StrCat("near byte ", size_ - source_.bytes_in_buffer, " of ", size_);
    if (info_.output_scanline == 0) return byte;
    return absl::StrCat(byte, ", in row ", info_.output_scanline, " of ", info_.image_height);
  }
  absl::Status corrupt() const {
    return absl::DataLossError(absl::StrCat("a corrupt JPEG image, ", position(), ": ", jump_.message));
  }
  absl::Status truncated() const {
    return absl::DataLossError(absl::StrCat("a truncated JPEG image: the data ends ", position()));
  }

  const size_t size_;
  ErrorJump jump_;
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
};

}  // namespace

absl::StatusOr<Image> decode_jpeg(std::string_view bytes, int64_t max_pixels) {
  return JpegDecoder(bytes).decode(max_pixels);
}

}  // namespace titan::images
