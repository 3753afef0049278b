#pragma once

#include "worker/kernels/cuda/float8_numbers.h"
#include "worker/kernels/cuda/rows.h"

// What worker/kernels/float8_scales.h says, for teams. Numbers travel by eight: who calls has asked takes() first.
namespace titan::kernels::device {

constexpr int kFloat8Threads = 256;

// The greatest magnitude of a part of the packs.
struct AmaxOfPart {
  static constexpr int64_t kPacks = 2048;
  Float8Amax a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kPacks, left = a.count / kVector - first;
    const uint16_t* x = a.x + first * kVector;
    const uint32_t most = team.fold(
        left < kPacks ? left : kPacks, 0U,
        [=](uint32_t so_far, int64_t pack) { return greatest_magnitude(so_far, load_16_bytes(x + pack * kVector)); },
        Greater());
    team.once([&] { raise(a.amax, most); });
  }
};

// Of a tile of rows and columns. A thread reads eight columns of every eighth row, all at once; then a column is one
// thread's.
struct AmaxOfColumns {
  static constexpr int64_t kRows = 64, kColumns = 256;
  static constexpr int64_t kGroups = kFloat8Threads / (kColumns / kVector);  // Rows that are read side by side.
  static constexpr int64_t kFloats = kGroups * kColumns;
  Float8ColumnAmax a;
  int64_t down, across;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const int64_t matrix = i / (down * across), within = i % (down * across);
    const int64_t row = within / across * kRows, column = within % across * kColumns;
    const int64_t rows = a.rows - row < kRows ? a.rows - row : kRows;
    const int64_t columns = a.columns - column < kColumns ? a.columns - column : kColumns;
    const uint16_t* x = a.x + (matrix * a.rows + row) * a.columns + column;
    float *amax = a.amax + matrix * a.columns + column, *memory = team.memory();
    team.each(kFloat8Threads, [=, stride = a.columns](int64_t item) {
      const int64_t group = item / (kColumns / kVector), first = item % (kColumns / kVector) * kVector;
      if (first >= columns) return;
      Words read[kRows / kGroups] = {};
      TITAN_UNROLL
      for (int64_t j = 0; j < kRows / kGroups; ++j) {
        const int64_t r = group + j * kGroups;
        if (r < rows) read[j] = load_16_bytes(x + r * stride + first);
      }
      Words most[2] = {};
      TITAN_UNROLL
      for (const Words& words : read) {
        TITAN_UNROLL
        for (int k = 0; k < kVector; ++k) {
          most[k / 4].w[k % 4] = Greater()(most[k / 4].w[k % 4], words.w[k / 2] >> k % 2 * 16 & 0x7fff);
        }
      }
      store_16_bytes(memory + group * kColumns + first, most[0]);
      store_16_bytes(memory + group * kColumns + first + 4, most[1]);
    });
    team.barrier();
    team.each(columns, [=](int64_t k) {
      uint32_t most = 0;
      for (int64_t group = 0; group < kGroups; ++group) most = Greater()(most, bits_of(memory[group * kColumns + k]));
      raise(amax + k, most);
    });
    team.barrier();
  }
};

struct CastPart {
  static constexpr int64_t kPacks = 1024;
  Float8Cast a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kPacks, left = a.count / kVector - first;
    const uint16_t* x = a.x + first * kVector;
    uint8_t* values = a.values + first * kVector;
    const float scale = scale_of(*a.amax, a.to);
    if (part == 0) team.once([&] { *a.inverse = 1 / scale; });
    team.each(left < kPacks ? left : kPacks, [=, format = a.to.format](int64_t pack) {
      const Pack<kVector> numbers = load<kVector>(x + pack * kVector);
      store_codes(values + pack * kVector, codes_of(
                                               numbers, [=](int) { return scale; }, format));
    });
  }
};

struct Float8Row {
  Float8Rows a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const uint16_t* x = a.x + row * a.columns;
    uint8_t* values = a.values + row * a.columns;
    const uint32_t most = team.fold(
        a.columns / kVector, 0U,
        [=](uint32_t so_far, int64_t pack) { return greatest_magnitude(so_far, load_16_bytes(x + pack * kVector)); },
        Greater());
    const float scale = scale_of(widened(most), a.to);
    team.once([&] { a.inverse[row] = 1 / scale; });
    team.each(a.columns / kVector, [=, format = a.to.format](int64_t pack) {
      const Pack<kVector> numbers = load<kVector>(x + pack * kVector);
      store_codes(values + pack * kVector, codes_of(
                                               numbers, [=](int) { return scale; }, format));
    });
  }
};

// Tiles of a matrix that turn in a team's memory. A thread reads four rows of eight neighbours, holds their codes as
// eight words of a column each, and writes sixteen codes of a column.
struct Tile {
  static constexpr int64_t kRows = 128, kColumns = 64;
  static constexpr int kPitch = kRows / 4 + 1;  // Words of a column; one more, so that columns meet other banks.
  static constexpr int64_t kFloats = kColumns * (kPitch + 1);

  int64_t rows, columns;  // Of the matrix.
  int64_t row, column;    // Where the tile begins.
  uint8_t* to;            // Where its first column begins in the turned matrix.

  // codes(row, column): eight codes of a row of the matrix.
  template <typename Team, typename Source>
  TITAN_BODY void turn(Team& team, uint32_t* memory, const Source& codes) const {
    team.each(kRows / 4 * (kColumns / kVector), [=, *this](int64_t i) {
      const int64_t four = i / (kColumns / kVector), eight = i % (kColumns / kVector);
      const int64_t first = row + 4 * four, left = column + kVector * eight;
      if (first >= rows || left >= columns) return;
      Codes of_rows[4];
      TITAN_UNROLL
      for (int r = 0; r < 4; ++r) of_rows[r] = codes(first + r, left);
      TITAN_UNROLL
      for (int k = 0; k < kVector; ++k) {
        const auto byte = [&](int r) { return of_rows[r].w[k / 4] >> k % 4 * 8 & 0xff; };
        memory[(kVector * eight + k) * kPitch + four] = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
      }
    });
    team.barrier();
    team.each(kColumns * (kRows / 16), [=, *this](int64_t i) {
      const int64_t k = i / (kRows / 16), sixteen = i % (kRows / 16);
      if (column + k >= columns || row + 16 * sixteen >= rows) return;
      const uint32_t* words = memory + k * kPitch + 4 * sixteen;
      store_16_bytes(to + k * rows + 16 * sixteen, {{words[0], words[1], words[2], words[3]}});
    });
    team.barrier();
  }
};

inline int64_t parts_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Those of matrices [batch, rows, columns], a team's each.
struct Tiles {
  Tiles(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), down(parts_of(rows, Tile::kRows)), across(parts_of(columns, Tile::kColumns)) {}

  int64_t rows, columns;
  int64_t down, across;

  TITAN_BODY int64_t matrix(int64_t i) const { return i / (down * across); }
  TITAN_BODY Tile tile(int64_t i, uint8_t* turned) const {
    const int64_t within = i % (down * across);
    const int64_t row = within / across * Tile::kRows, column = within % across * Tile::kColumns;
    return {rows, columns, row, column, turned + (matrix(i) * columns + column) * rows + row};
  }
};

struct TurnColumns {
  Float8Columns a;
  Tiles tiles;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const int64_t matrix = tiles.matrix(i);
    const Tile tile = tiles.tile(i, a.values);
    const int64_t first = matrix * a.columns + tile.column;
    float* scales = team.memory();
    const int64_t left = a.columns - tile.column, columns = left < Tile::kColumns ? left : Tile::kColumns;
    team.each(columns, [=, *this](int64_t k) {
      scales[k] = scale_of(a.amax[first + k], a.to);
      if (tile.row == 0) a.inverse[first + k] = 1 / scales[k];
    });
    team.barrier();
    const uint16_t* x = a.x + matrix * a.rows * a.columns;
    const auto codes = [=, *this](int64_t row, int64_t column) {
      const float* of_columns = scales + (column - tile.column);
      return codes_of(
          load<kVector>(x + row * a.columns + column), [=](int k) { return of_columns[k]; }, a.to.format);
    };
    tile.turn(team, reinterpret_cast<uint32_t*>(scales + Tile::kColumns), codes);
  }
};

struct TurnTile {
  TurnBytes a;
  Tiles tiles;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const auto codes = [=, *this](int64_t row, int64_t column) {
      return load_codes(a.from + row * a.columns + column);
    };
    tiles.tile(i, a.to).turn(team, reinterpret_cast<uint32_t*>(team.memory()), codes);
  }
};

inline bool takes(const Float8Amax& a) { return a.count % kVector == 0 && lie_at_16(a.x); }
inline bool takes(const Float8ColumnAmax& a) { return a.columns % kVector == 0 && lie_at_16(a.x); }
inline bool takes(const Float8Cast& a) { return a.count % kVector == 0 && lie_at_16(a.x, a.values); }
inline bool takes(const Float8Rows& a) { return a.columns % kVector == 0 && lie_at_16(a.x, a.values); }
inline bool takes(const Float8Columns& a) {
  return a.rows % 16 == 0 && a.columns % kVector == 0 && lie_at_16(a.x, a.values);
}
inline bool takes(const TurnBytes& a) {
  return a.rows % 16 == 0 && a.columns % kVector == 0 && lie_at_16(a.from, a.to);
}

template <typename Grid>
void float8(const Float8Amax& a, Grid& grid) {
  grid(AmaxOfPart{a}, parts_of(a.count / kVector, AmaxOfPart::kPacks), kFloat8Threads);
}

template <typename Grid>
void float8(const Float8ColumnAmax& a, Grid& grid) {
  const int64_t down = parts_of(a.rows, AmaxOfColumns::kRows), across = parts_of(a.columns, AmaxOfColumns::kColumns);
  grid(AmaxOfColumns{a, down, across}, a.batch * down * across, kFloat8Threads, AmaxOfColumns::kFloats);
}

template <typename Grid>
void float8(const Float8Cast& a, Grid& grid) {
  // One part at least: it writes the scale.
  const int64_t parts = parts_of(a.count / kVector, CastPart::kPacks);
  grid(CastPart{a}, parts > 0 ? parts : 1, kFloat8Threads);
}

template <typename Grid>
void float8(const Float8Rows& a, Grid& grid) {
  grid(Float8Row{a}, a.rows, threads_for(a.columns / kVector));
}

template <typename Grid>
void float8(const Float8Columns& a, Grid& grid) {
  const Tiles tiles(a.rows, a.columns);
  grid(TurnColumns{a, tiles}, a.batch * tiles.down * tiles.across, kFloat8Threads, Tile::kFloats);
}

template <typename Grid>
void float8(const TurnBytes& a, Grid& grid) {
  const Tiles tiles(a.rows, a.columns);
  grid(TurnTile{a, tiles}, tiles.down * tiles.across, kFloat8Threads, Tile::kFloats);
}

}  // namespace titan::kernels::device
