#include "worker/rank/runtime/metrics_out/device_peak.h"

namespace titan::runtime {
namespace {

// Peaks for dense matmuls in TFLOP/s. 0: none or unknown.
struct Peak {
  const char* name;  // Substring of the device's name.
  const char* form;  // Substring for one variant of the device. Empty: any.
  double half;       // bfloat16 and float16.
  double single;     // float32, without TF32.
  double quarter;    // float8. Data sheets that count sparsity list twice as much.
};

// The first match applies.
constexpr Peak kPeaks[] = {
    {"A100", "", 312, 19.5, 0},        {"H100", "NVL", 835, 60, 1670},    {"H100", "PCIe", 756, 51, 1513},
    {"H100", "", 989, 67, 1979},       {"H200", "NVL", 835, 60, 1670},    {"H200", "", 989, 67, 1979},
    {"H20", "", 148, 44, 296},         {"B200", "", 2250, 75, 4500},      {"MI355X", "", 2500, 0, 5000},
    {"MI300X", "", 1300, 163.4, 2614}, {"MI325X", "", 1300, 163.4, 2614}, {"MI250X", "", 191.5, 0, 0},
    {"l40s", "", 362, 91.6, 733},      {"L40S", "", 362, 91.6, 733},
};

double tera_of(const Peak& peak, const std::string& dtype) {
  if (dtype == "bfloat16" || dtype == "float16") return peak.half;
  if (dtype == "float32") return peak.single;
  return dtype == "float8" ? peak.quarter : 0;
}

}  // namespace

std::optional<double> device_peak(const std::string& device_name, const std::string& dtype) {
  const auto has = [&](const char* part) { return device_name.find(part) != std::string::npos; };
  for (const Peak& peak : kPeaks) {
    if (!has(peak.name) || !has(peak.form)) continue;
    const double tera = tera_of(peak, dtype);
    return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace titan::runtime
