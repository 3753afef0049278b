#include "worker/runtime/metrics_out/device_peak.h"

namespace titan::runtime {
namespace {

struct Peak {
  const char* name;  // A part of the device's.
  const char* form;  // Another, of one form of it; empty: any.
  double half;       // TFLOP/s in bfloat16 and float16.
  double single;     // In float32; 0: not known.
};

// The first that fits.
constexpr Peak kPeaks[] = {
    {"A100", "", 312, 19.5},     {"H100", "NVL", 835, 60},    {"H100", "PCIe", 756, 51}, {"H100", "", 989, 67},
    {"H200", "", 989, 67},       {"H20", "", 148, 44},        {"B200", "", 2250, 0},     {"MI355X", "", 2500, 0},
    {"MI300X", "", 1300, 163.4}, {"MI325X", "", 1300, 163.4}, {"MI250X", "", 191.5, 0},  {"l40s", "", 362, 91.6},
    {"L40S", "", 362, 91.6},
};

}  // namespace

std::optional<double> device_peak(const std::string& device_name, const std::string& dtype) {
  const auto has = [&](const char* part) { return device_name.find(part) != std::string::npos; };
  for (const Peak& peak : kPeaks) {
    if (!has(peak.name) || !has(peak.form)) continue;
    const double tera = dtype == "float32" ? peak.single : dtype == "float64" ? 0 : peak.half;
    return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace titan::runtime
