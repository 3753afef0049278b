#include "worker/rank/runtime/metrics_out/console_line.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace titan::runtime {
namespace {

struct Colors {
  const char *red = "", *green = "", *yellow = "", *blue = "", *magenta = "", *cyan = "", *orange = "", *turquoise = "",
             *reset = "";
};
constexpr Colors kPlain;
constexpr Colors kColored{"\033[31m",
                          "\033[32m",
                          "\033[33m",
                          "\033[34m",
                          "\033[35m",
                          "\033[36m",
                          "\033[38;2;180;60;0m",
                          "\033[38;2;54;234;195m",
                          "\033[39m"};

std::string fixed(const char* format, double value) {
  char text[400];  // A double's largest value has 309 digits.
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string step_text(int64_t step) {
  std::string text = absl::StrCat(step);
  return text.size() < 2 ? absl::StrCat(" ", text) : text;
}

std::string memory_text(const MemoryStats& memory) {
  return absl::StrCat("memory: ", fixed("%5.2f", memory.max_reserved_gib), "GiB(",
                      fixed("%.2f", memory.max_reserved_percent), "%)  ");
}

}  // namespace

std::string with_commas(double value, int decimals) {
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  std::string result = text;
  if (!std::isfinite(value)) return result;
  size_t end = result.find('.');
  if (end == std::string::npos) end = result.size();
  const size_t first = result[0] == '-' ? 1 : 0;
  while (end > first + 3) {
    end -= 3;
    result.insert(end, 1, ',');
  }
  return result;
}

std::string train_line(const ConsoleFigures& figures, bool color) {
  const Colors& c = color ? kColored : kPlain;
  return absl::StrCat(c.red, "step: ", step_text(figures.step), "  ", c.green, "loss: ", fixed("%8.5f", figures.loss),
                      "  ", c.orange, "grad_norm: ", fixed("%7.4f", figures.grad_norm), "  ", c.turquoise,
                      memory_text(figures.memory), c.blue,
                      "tps: ", with_commas(std::nearbyint(figures.tokens_per_second), 0), "  ", c.cyan,
                      "tflops: ", with_commas(figures.tflops, 2), "  ", c.magenta,
                      "mfu: ", figures.mfu ? fixed("%.2f", *figures.mfu) + "%" : "-", c.reset);
}

std::string validation_line(const ConsoleFigures& figures, bool color) {
  const Colors& c = color ? kColored : kPlain;
  return absl::StrCat(c.yellow, "validate step: ", step_text(figures.step), "  ", c.green,
                      "loss: ", fixed("%7.4f", figures.loss), "  ", c.turquoise, memory_text(figures.memory), c.blue,
                      "tps: ", with_commas(std::nearbyint(figures.tokens_per_second), 0), c.reset);
}

std::string log_line(absl::Time now, const std::string& message) {
  char milliseconds[8];
  std::snprintf(milliseconds, sizeof milliseconds, ",%03d", static_cast<int>(absl::ToUnixMillis(now) % 1000));
  return absl::StrCat("[titan] ", absl::FormatTime("%Y-%m-%d %H:%M:%S", now, absl::LocalTimeZone()), milliseconds,
                      " - root - INFO - ", message);
}

}  // namespace titan::runtime
