// Processes images as a loader does, for comparison with Python packages. A line of input is a request, {"file": "..",
// "steps": [["resize", width, height, left, top, width, height], ["crop", ..], ["rgb"]], "result": "pixels", "out":
// ".."}; a line of output has the code and text of an error, or the mode and size of the result, whose numbers are in
// the file `out`. With "times" the work is repeated, and the thread's seconds are returned. The results are described
// in `finish`.
#include <malloc.h>

#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "nlohmann/json.hpp"
#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/images/encode_png.h"
#include "worker/rank/data/images/patches.h"
#include "worker/rank/data/images/qwen_patches.h"
#include "worker/rank/data/images/resize.h"
#include "worker/rank/data/images/square_crop.h"

namespace {

using nlohmann::json;
using namespace titan::images;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <typename Number>
std::string_view bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

Box box_of(const json& step, size_t first) { return {step[first], step[first + 1], step[first + 2], step[first + 3]}; }

Image take_step(const Image& image, const json& step) {
  if (step[0] == "rgb") return to_rgb(image);
  if (step[0] == "crop") return crop(image, box_of(step, 1));
  if (step.size() == 3) return resize_bicubic(image, step[1], step[2]);
  return resize_bicubic(image, step[1], step[2], box_of(step, 3));
}

// Writes the numbers of the result and describes them.
absl::Status finish(const Image& image, const json& request, std::ostream& out, json& answer) {
  const std::string result = request.value("result", "pixels");
  if (result == "pixels") {
    answer = {{"mode", name(image.mode)}, {"width", image.width}, {"height", image.height}};
    out << bytes_of(image.pixels) << bytes_of(image.palette);
  } else if (result == "square") {
    const int size = request["size"];
    static std::vector<float> square;  // Kept, as a loader keeps its batch.
    square.resize(3 * static_cast<size_t>(size) * static_cast<size_t>(size));
    const auto draw = [&](int64_t bound) {
      answer["bound"] = bound;
      return std::min(request["draw"].get<int64_t>(), bound - 1);
    };
    if (absl::Status written = write_square_crop(image, size, draw, square.data()); !written.ok()) return written;
    out << bytes_of(square);
  } else if (result == "qwen") {
    const auto options = read_qwen_patch_options(request["processor"], "preprocessor_config.json");
    if (!options.ok()) return options.status();
    const auto patches = cut_qwen_patches(image, *options);
    if (!patches.ok()) return patches.status();
    answer = {{"rows", patches->rows}, {"columns", patches->columns}};
    out << bytes_of(patches->patches);
  } else if (result == "patches") {
    const auto patches = cut_patches(image, {request["patch"], request["merge"], request["max"]});
    if (!patches.ok()) return patches.status();
    answer = {{"rows", patches->rows}, {"columns", patches->columns}};
    out << bytes_of(patches->patches) << bytes_of(patches->places);
  } else {
    const json& fields = request["fields"];
    const auto png =
        encode_png(image.pixels, image.width, image.height,
                   {fields["software"], fields["make"], fields["model"], fields["description"], fields["texts"]});
    if (!png.ok()) return png.status();
    out << *png;
  }
  return absl::OkStatus();
}

absl::Status process(const std::string& bytes, const json& request, std::ostream& out, json& answer) {
  absl::StatusOr<Image> image = decode_image(bytes, request.value("max_pixels", kDefaultMaxPixels));
  if (!image.ok()) return image.status();
  for (const json& step : request.value("steps", json::array())) image = take_step(*image, step);
  return finish(*image, request, out, answer);
}

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

json answer_to(const json& request) {
  json answer = json::object();
  const std::string bytes = read_file(request["file"]);
  std::ofstream out(request.value("out", "/dev/null"), std::ios::binary);
  const double start = thread_seconds();
  for (int i = 0; i < request.value("times", 1); ++i) {
    if (const absl::Status done = process(bytes, request, out, answer); !done.ok()) {
      return {{"code", absl::StatusCodeToString(done.code())}, {"error", std::string(done.message())}};
    }
  }
  answer["seconds"] = thread_seconds() - start;
  return answer;
}

// Keeps freed memory as a rank does (worker/rank/runtime/rank_main.cc). By default malloc returns an image to the
// kernel after each one, and the next takes a page fault for each of its pages.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace

int main() {
  keep_freed_memory();
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer_to(json::parse(line)).dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
