#include "common/io/data_files/signature.h"

#include <utility>

namespace titan::data_files {
namespace {

using Sign = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kArrow =
    "Arrow's format, which datasets.save_to_disk writes (in Python: "
    "datasets.load_from_disk(FOLDER).to_parquet(\"data.parquet\"), or .to_json(\"data.jsonl\"))";
constexpr std::string_view kXz = "compressed by xz (`unxz` decompresses it; .gz and .zst are read as they are)";
constexpr std::string_view kBzip2 =
    "compressed by bzip2 (`bunzip2` decompresses it; .gz and .zst are read as they are)";
constexpr std::string_view kLz4 = "compressed by LZ4 (`unlz4` decompresses it; .gz and .zst are read as they are)";
constexpr std::string_view kZip = "a ZIP archive (`unzip` extracts its files)";
constexpr std::string_view kTar = "a tar archive (`tar -xf` extracts its files)";
constexpr std::string_view kTable =
    "a table of text (in Python: datasets.load_dataset(\"csv\", data_files=FILE)[\"train\"].to_json(\"data.jsonl\"))";

constexpr Sign kForeignBytes[] = {
    {std::string_view("\xFF\xFE\0\0", 4), "UTF-32 (`iconv -f UTF-32 -t UTF-8` makes UTF-8 of it)"},
    {"\xFF\xFE", "UTF-16 (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)"},
    {"\xFE\xFF", "UTF-16 (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)"},
    {std::string_view("{\0", 2), "UTF-16 (`iconv -f UTF-16LE -t UTF-8` makes UTF-8 of it)"},
    {std::string_view("\0{", 2), "UTF-16 (`iconv -f UTF-16BE -t UTF-8` makes UTF-8 of it)"},
    {"\x1F\x8B", "compressed by gzip (its name has to end with .gz)"},
    {"\x28\xB5\x2F\xFD", "compressed by zstd (its name has to end with .zst)"},
    {std::string_view("\xFD\x37zXZ\0", 6), kXz},
    {"BZh", kBzip2},
    {"\x04\x22\x4D\x18", kLz4},
    {"PK\x03\x04", kZip},
    {"PAR1", "Parquet (its name has to end with .parquet, or dataloader.format = \"parquet\" says so)"},
    {"ARROW1", kArrow},
    {"\xFF\xFF\xFF\xFF", kArrow},
    {"version https://git-lfs", "the pointer of a file that Git LFS keeps elsewhere (`git lfs pull` fetches the file)"},
    {"<!DOCTYPE", "a page of HTML (a download that was answered with a page, such as a login)"},
    {"<!doctype", "a page of HTML (a download that was answered with a page, such as a login)"},
    {"<html", "a page of HTML (a download that was answered with a page, such as a login)"},
};

constexpr Sign kForeignEndings[] = {
    {".arrow", kArrow}, {".xz", kXz},        {".bz2", kBzip2},    {".lz4", kLz4},     {".zip", kZip},
    {".tar", kTar},     {".tgz", kTar},      {".tar.gz", kTar},   {".tar.zst", kTar}, {".csv", kTable},
    {".tsv", kTable},   {".csv.gz", kTable}, {".tsv.gz", kTable},
};

}  // namespace

std::string foreign_bytes(std::string_view first_bytes) {
  for (const auto& [bytes, meaning] : kForeignBytes) {
    if (first_bytes.starts_with(bytes)) return std::string(meaning);
  }
  return {};
}

std::string foreign_name(std::string_view file) {
  for (const auto& [ending, meaning] : kForeignEndings) {
    if (file.ends_with(ending)) return std::string(meaning);
  }
  return {};
}

}  // namespace titan::data_files
