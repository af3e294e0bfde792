// The table of AMX on tiles that plain C++ emulates, for machines without: checked as any other.
#include "tiled.h"

#include <cstdlib>

#include "check.h"
#include "tests.h"

namespace headrace::test {
namespace {

// The instructions as Intel's manual (volume 2) defines them. One that the processor would refuse ends the program.
struct EmulatedTiles {
  static constexpr const char* kName = "amx, emulated";

  static void configure(const TileConfig& c) {
    require(c.palette == 1 && c.start_row == 0);
    require(released());  // legal, but somebody has left them configured
    for (int i = 0; i < 14; i++) require(c.reserved[i] == 0);
    for (int i = 0; i < 16; i++) {
      require(i < 8 ? c.row_bytes[i] <= 64 && c.rows[i] <= 16 : c.row_bytes[i] == 0 && c.rows[i] == 0);
      require((c.row_bytes[i] == 0) == (c.rows[i] == 0));
    }
    config = c;
    std::memset(tiles, 0, sizeof tiles);
  }
  static void release() { config = {}; }
  template <int T> static void zero() {
    require(config.rows[T] != 0);
    std::memset(tiles[T], 0, sizeof tiles[T]);
  }
  template <int T> static void load(const void* p, int64_t stride) {
    zero<T>();
    for (int row = 0; row < config.rows[T]; row++)
      std::memcpy(tiles[T][row], static_cast<const uint8_t*>(p) + row * stride, config.row_bytes[T]);
  }
  template <int T> static void store(void* p, int64_t stride) {
    require(config.rows[T] != 0);
    stored++;
    for (int row = 0; row < config.rows[T]; row++)
      std::memcpy(static_cast<uint8_t*>(p) + row * stride, tiles[T][row], config.row_bytes[T]);
  }
  template <int C, int A, int B> static void dot() {
    require(C != A && A != B && B != C && config.rows[A] == config.rows[C] && config.row_bytes[A] % 4 == 0);
    require(config.row_bytes[A] / 4 == config.rows[B] && config.row_bytes[B] == config.row_bytes[C]);
    require(config.rows[C] != 0 && config.row_bytes[C] % 4 == 0);
    for (int m = 0; m < config.rows[C]; m++) {
      int32_t sums[16];
      std::memcpy(sums, tiles[C][m], 64);
      for (int k = 0; k < config.row_bytes[A]; k++)
        for (int n = 0; n < config.row_bytes[C] / 4; n++)
          sums[n] += int32_t(tiles[A][m][k]) * int32_t(tiles[B][k / 4][4 * n + k % 4]);
      std::memcpy(tiles[C][m], sums, 64);
    }
  }

  static bool released() { return config.palette == 0; }
  static thread_local long stored;  // how many tiles

 private:
  static void require(bool legal) {
    if (!legal) std::abort();
  }
  static thread_local TileConfig config;
  static thread_local int8_t tiles[8][16][64];
};

thread_local long EmulatedTiles::stored = 0;
thread_local TileConfig EmulatedTiles::config;
thread_local int8_t EmulatedTiles::tiles[8][16][64];

constexpr Kernels table = kernels_with_tiles<WithTiles<EmulatedTiles>>();

}  // namespace

int check_tiled(long shapes) {
  const int wrong = check_matmul(table, shapes);
  failures = 0;
  if (EmulatedTiles::stored == 0) fail(table.name, "tiles are not used", 0);
  if (!EmulatedTiles::released()) fail(table.name, "tiles are left configured", 0);
  if (!tiles_work<EmulatedTiles>() || !EmulatedTiles::released()) fail(table.name, "tiles_work", 0);
  return wrong + failures;
}

}  // namespace headrace::test
