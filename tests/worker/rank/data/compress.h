#pragma once

// Compressed text as the programs gzip and zstd write it.

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace titan::data::testing {

// Compresses into one gzip member.
inline std::string gzip(std::string_view text) {
  std::string out(text.size() + text.size() / 1000 + 1000, '\0');
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Compresses into one zstd frame.
inline std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // Like the zstd program.
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

// Returns the content for a file of that name: the text itself, or compressed in members or frames of `part` bytes of
// text.
inline std::string as_named(std::string_view name, std::string_view text, size_t part = std::string_view::npos) {
  if (!name.ends_with(".gz") && !name.ends_with(".zst")) return std::string(text);
  std::string out;
  do {
    const std::string_view chunk = text.substr(0, part);
    out += name.ends_with(".gz") ? gzip(chunk) : zstd(chunk);
    text.remove_prefix(chunk.size());
  } while (!text.empty());
  return out;
}

}  // namespace titan::data::testing
