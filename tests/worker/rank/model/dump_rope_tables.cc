// Writes one flavor's fp32 RoPE table as raw bytes: dump_rope_tables FAMILY FLAVOR SEQ_LEN > FILE.
#include <cstdio>
#include <cstdlib>

#include "common/plan/models/registry.h"
#include "worker/rank/model/decoder/options.h"

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: dump_rope_tables FAMILY FLAVOR SEQ_LEN\n", stderr), 2;
  const auto spec = titan::models::find(argv[1], argv[2]);
  if (!spec.ok()) return std::fprintf(stderr, "%s\n", spec.status().ToString().c_str()), 1;
  titan::nn::Rope rope(titan::model::rope_options(*spec, std::atoll(argv[3])));
  rope.fill(at::kCPU, at::kBFloat16);
  const at::Tensor table = rope.table().is_complex() ? at::view_as_real(rope.table()) : rope.table();
  const size_t bytes = table.nbytes();
  return std::fwrite(table.contiguous().const_data_ptr(), 1, bytes, stdout) == bytes ? 0 : 1;
}
